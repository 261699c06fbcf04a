"""What cannot be compared: each one sentence that names the side and says what to do, and nothing left open."""

import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save

from analyzers.checkpoints import Access
from analyzers.checkpoints.hub import replies
from analyzers.comparison.sparsity import SparsityRequest, analyze
from analyzers.core import limits
from analyzers.core.errors import AccessDenied, CheckpointNotFound, LimitExceeded
from analyzers.core.request import request_error
from tests.dtype_detection.checkpoints import normal, write
from tests.hub import Fault, LocalHub
from tests.update_sparsity.checkpoints import BF16, Tensors, model, pair, updated
from tests.update_sparsity.oracle_comparison import compare, refused


def adapter(rank: int = 4) -> Tensors:
    start = "base_model.model.model.layers.0.self_attn.q_proj"
    return {f"{start}.lora_A.weight": normal(rank, 48), f"{start}.lora_B.weight": normal(48, rank)}


def test_a_merged_model_with_its_adapter_beside_it_is_compared(tmp_path: Path) -> None:
    base = model()
    one, other = pair(tmp_path, base, updated(base))
    (other / "adapter_model.safetensors").write_bytes(save(adapter()))
    assert compare(one, other).num_changed


def test_integers_are_refused_with_the_side(tmp_path: Path) -> None:
    base = model()
    quantized: Tensors = {"model.embed_tokens.weight": base["model.embed_tokens.weight"]}
    start = "model.layers.0.mlp.up_proj."
    quantized |= {
        f"{start}qweight": torch.ones(6, 96, dtype=torch.int32),
        f"{start}qzeros": torch.ones(1, 12, dtype=torch.int32),
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


def test_a_few_integers_do_not_keep_the_rest_from_being_compared(tmp_path: Path) -> None:
    base = model()
    routes: Tensors = {"model.layers.0.mlp.gate.weight": torch.ones(4, 4, dtype=torch.int8)}
    one, other = pair(tmp_path, base | routes, updated(base) | routes)
    report = compare(one, other)
    assert report.num_changed and report.total_parameters == sum(tensor.numel() for tensor in base.values())
    assert [tensor.name for tensor in report.unmatched.integers] == list(routes)
    many: Tensors = {"model.layers.0.mlp.gate.weight": torch.ones(48, 48, dtype=torch.int8)}
    assert "integer weights" in refused(one, write(tmp_path / "many", base | many))


def test_without_a_single_value(tmp_path: Path) -> None:
    empty = write(tmp_path / "empty", {"a.weight": torch.zeros(0, 4, dtype=BF16)})
    assert "no tensor with values" in refused(empty, empty)


def test_names_nobody_has(tmp_path: Path) -> None:
    one, other = pair(tmp_path, model(), model())
    assert "No tensor is left" in refused(one, other, include="no such name")
    assert "No tensor is left" in refused(one, other, exclude=".")
    assert refused(one, other, subfolder="none").startswith("Base: ")
    assert "too small" in refused(one, other, mode="quick", budget=1)


@pytest.mark.parametrize("eta", [0, -1, 1, 2, float("nan"), float("inf")])
def test_eta_lies_between_0_and_1(eta: float) -> None:
    with pytest.raises(ValidationError) as caught:
        SparsityRequest(base="a/b", tuned=("c/d",), eta=eta)
    assert str(request_error(caught.value)).startswith("eta must ")


def test_the_number_of_checkpoints_is_limited() -> None:
    with pytest.raises(ValidationError) as caught:
        SparsityRequest(base="a/b", tuned=("c/d",) * (limits.TRAJECTORY + 1))
    assert "at most 64 checkpoints are compared" in str(request_error(caught.value))
    with pytest.raises(ValidationError):
        SparsityRequest(base="a/b", tuned=())


def test_a_typing_error_is_told_before_anything_is_read(hub: LocalHub) -> None:
    assert refused("org/base", "org/na me").startswith("Tuned: ")
    assert refused("hf_" + "a" * 34, "org/tuned").startswith("Base: ")
    assert not hub.requests


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


def test_both_sides_from_the_hub_or_one(sides: LocalHub, tmp_path: Path) -> None:
    base = model()
    one, other = pair(tmp_path, base, updated(base))
    here = compare(one, other)
    there, mixed = compare("org/base", "org/tuned"), compare("org/base", other)
    for report in (there, mixed):
        assert (report.num_changed, report.magnitudes, report.tensors) == (here.num_changed, here.magnitudes, here.tensors)
    assert there.base.public and not mixed.tuned[0].public
    sides.commit("org/tuned", {"model.safetensors": save(updated(base, seed=5))}, revision="step-2")
    report = compare("org/base", "org/tuned", "org/tuned@step-2")
    assert report.request.tuned == ("org/tuned", "org/tuned@step-2")
    assert report.trajectory[0].num_changed == here.num_changed != report.num_changed
    assert report.tuned[0].commit != report.tuned[1].commit


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


def test_nothing_stays_open(tmp_path: Path) -> None:
    base = model()
    one, other = pair(tmp_path, base, updated(base))

    def held() -> set[object]:
        found: set[object] = set(threading.enumerate())
        for path in Path("/proc/self/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                found.add((path.name, path.readlink()))
        return found

    compare(one, other)
    before = held()
    compare(one, other)
    refused(one, tmp_path / "none")
    refused(one, write(tmp_path / "unlike", {"b": normal(4, 4)}))
    stream = analyze(SparsityRequest(base=str(one), tuned=(str(other),), mode="exact"), Access(local=True))
    for item in stream:
        if getattr(item, "note", "") == "reading weights":
            break
    stream.close()  # type: ignore[attr-defined]
    deadline = time.monotonic() + 60
    while held() - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert held() - before == set()  # what an earlier test left may end meanwhile
