"""The builder, on a few updates: every sample is written, training is what its name says, and nothing is left to chance."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from analyzers.language_models.samples import ADAPTERS, SAMPLES
from tests.samples import build
from tests.samples.training import DTYPES, Outcome


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
