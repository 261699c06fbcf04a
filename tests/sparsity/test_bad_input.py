"""What cannot be compared: each one sentence that names the side and says what to do, and nothing left open."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from analyzers.__main__ import main
from analyzers.checkpoints import Access
from analyzers.checkpoints.hub import replies
from analyzers.comparison.sparsity import SparsityRequest, analyze
from analyzers.core import limits
from analyzers.core.errors import AccessDenied, CheckpointNotFound, LimitExceeded
from tests.dtype.checkpoints import normal, write
from tests.hub import Fault, LocalHub
from tests.sparsity.checkpoints import Tensors, model, pair, updated
from tests.sparsity.oracle_comparison import compare, refused


def test_integers_are_refused_with_the_side(tmp_path: Path) -> None:
    base = model()
    quantized: Tensors = {"model.embed_tokens.weight": base["model.embed_tokens.weight"]}
    start = "model.layers.0.mlp.up_proj."
    quantized |= {
        f"{start}qweight": torch.ones(6, 96, dtype=torch.int32),
        f"{start}scales": normal(1, 96).to(torch.float16),
        f"{start}g_idx": torch.zeros(48, dtype=torch.int32),
    }
    config = {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    one, other = pair(tmp_path, base, quantized, tuned_config=config)
    for sides, side in (((one, other), "Tuned"), ((other, one), "Base"), ((other, other), "Base")):
        said = refused(*sides)
        assert said.startswith(f"{side}: ") and "gptq" in said and "include filter" in said
    report = compare(one, other, include="embed")
    assert report.sparsity == 1 and report.total_parameters == base["model.embed_tokens.weight"].numel()
    plain = write(tmp_path / "int8", {name: torch.ones(tensor.shape, dtype=torch.int8) for name, tensor in base.items()})
    assert refused(one, plain).startswith("Tuned: ")
    assert "nothing to compare" in refused(one, plain, include="up_proj")
    assert refused(one, one, write(tmp_path / "unlike", {"transformer.wte.weight": normal(10, 8)}), one).startswith("Tuned 2 of 3: ")


@pytest.mark.parametrize(
    "options", [["--eta", "0"], ["--eta", "1"], ["--eta", "nan"], ["--eta", "x"], ["sample:tiny-tuned"] * limits.TRAJECTORY]
)
def test_bad_options_end_in_one_line(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        sys.exit(main(["sparsity", "sample:tiny-bf16", "sample:tiny-tuned", *options]))
    out, err = capsys.readouterr()
    assert (stop.value.code, out) == (2, "") and err.count("\n") == 1 and err.strip().isprintable()


def test_more_than_the_page_reads(tmp_path: Path) -> None:
    one, other = pair(tmp_path, model(), model())
    request = SparsityRequest(base=str(one), tuned=(str(other),), mode="exact")
    with pytest.raises(LimitExceeded, match="This would read"):
        list(analyze(request, Access(local=True), largest=1000))


# --- the Hub --------------------------------------------------------------------------------------------------------


@pytest.fixture
def sides(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> LocalHub:
    monkeypatch.setattr("analyzers.checkpoints.hub.replies.HUB_ATTEMPTS", 2)
    monkeypatch.setattr(replies, "_BACKOFF_SECONDS", 0.02)
    base = model()
    hub.add("org/base", {"model.safetensors": save(base)})
    hub.add("org/tuned", {"model.safetensors": save(updated(base))})
    return hub


def run(*references: str, **options: Any) -> None:
    request = SparsityRequest(base=references[0], tuned=references[1:], **options)
    list(analyze(request, Access()))


@pytest.mark.parametrize(("name", "side"), [("base", "Base"), ("tuned", "Tuned")])
def test_a_side_that_is_gated_gone_or_failing(name: str, side: str, sides: LocalHub) -> None:
    gated = sides.fault(Fault(f"/org/{name}/resolve", times=None, status=403, headers={"X-Error-Code": "GatedRepo"}))
    with pytest.raises(AccessDenied, match=f"^{side}: "):
        run("org/base", "org/tuned")
    assert gated.hits
    sides.clear_faults()
    sides.fault(Fault(f"/api/models/org/{name}", times=None, status=404))
    with pytest.raises(CheckpointNotFound, match=f"^{side}: "):
        run("org/base", "org/tuned")
