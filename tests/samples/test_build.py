"""The builder, on a few updates: every sample is written, training is what its name says, and nothing is left to chance."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from analyzers.language_models.samples import ADAPTERS, SAMPLES
from tests.samples import build
from tests.samples.training import DTYPES, FIRST_LOSS_SCALE, HalfPrecisionOperands, Outcome, train


@pytest.fixture(scope="module", autouse=True)
def _short_runs_and_torch_as_before() -> Iterator[None]:
    """Six updates on the three batches of the shortest texts."""
    batches = build._batches
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "UPDATES", 6)
        patch.setattr(build, "TUNING_UPDATES", 5)
        patch.setattr(build, "TUNING_STEP", 1)
        patch.setattr(build, "_batches", lambda *text, **options: batches(*text, **options)[:3])
        yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)


@pytest.fixture(scope="module")
def built(_short_runs_and_torch_as_before: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, Outcome]]]:
    """Every sample, built once for all tests: the folder, and what the builder returned, regime by regime."""
    folder = tmp_path_factory.mktemp("samples")
    return folder, {regime: build.build(regime, folder) for regime in DTYPES}


Built = tuple[Path, dict[str, dict[str, Outcome]]]


def test_every_sample_is_written_and_every_loss_falls(built: Built) -> None:
    assert {folder.name for folder in built[0].iterdir()} == {*SAMPLES, *ADAPTERS}
    losses = [(run.loss_before, run.loss_after) for results in built[1].values() for name, run in results.items() if "tuned" not in name]
    assert len(losses) == 3
    assert all(after < before - 0.05 for before, after in losses)


def test_building_again_gives_the_same_bytes(built: Built, tmp_path: Path) -> None:
    build.build("bf16", tmp_path)
    files = [file.relative_to(tmp_path) for file in tmp_path.rglob("*") if file.is_file()]
    assert len(files) > 30
    assert all((built[0] / file).read_bytes() == (tmp_path / file).read_bytes() for file in files)


def test_emulated_fp16_is_a_linear_layer_on_rounded_operands() -> None:
    """Against float64 on operands rounded by hand; results and gradients must lie on the grid of fp16."""
    torch.manual_seed(1)
    inputs, weight = torch.randn(8, 32, requires_grad=True), torch.randn(16, 32, requires_grad=True)
    with HalfPrecisionOperands():
        outputs = functional.linear(inputs, weight)
    (outputs.sum() / 3).backward()  # type: ignore[no-untyped-call]
    assert inputs.grad is not None and weight.grad is not None
    third = torch.tensor(1 / 3).half().double()
    expected = inputs.detach().half().double() @ weight.detach().half().double().T
    expected_grad = third * weight.detach().half().double().sum(0).expand(8, 32)
    for computed, exact in ((outputs.detach(), expected), (inputs.grad, expected_grad)):
        assert torch.equal(computed, computed.half().float())
        torch.testing.assert_close(computed.double(), exact, rtol=2**-10, atol=1e-5)
    assert torch.equal(weight.grad, weight.grad.half().float())


def test_an_overflowing_gradient_skips_the_update_and_halves_the_scale() -> None:
    class Steep(torch.nn.Module):
        """Logits so steep that the first loss scale is too large for fp16 gradients."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2, 2))

        def forward(self, input_ids: torch.Tensor, use_cache: bool) -> object:
            features = torch.eye(2)[input_ids] * 8
            logits = functional.linear(features, self.weight * torch.tensor([[1.0], [0.0]]))
            return type("Output", (), {"logits": logits})()

    ids = torch.tensor([[1, 1, 1]])
    outcome = train(Steep(), [(ids, ids)], "fp16-mixed", updates=4, peak=1e-3)
    assert FIRST_LOSS_SCALE == 2**16
    assert 1 <= outcome.skipped < 4
    assert outcome.updates == 4 - outcome.skipped
    assert outcome.loss_after < outcome.loss_before
