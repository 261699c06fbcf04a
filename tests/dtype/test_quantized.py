"""Reports on quantized weights: decoded ones are those of the same values stored as fp32; integers are named and refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

from analyzers.core.errors import UnsupportedWeights
from analyzers.dtype import DtypeReport
from tests.checkpoints.test_scales import codes, expanded, nbytes, positive
from tests.dtype.checkpoints import normal, write
from tests.dtype.reports import exact, inspect, parsed, steady
from tests.hub import LocalHub

UP, EXPERTS, NORM = "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.experts.gate_up_proj", "model.norm.weight"


def quantized() -> dict[str, torch.Tensor]:
    """Block fp8, MXFP4, and a norm in bf16."""
    return {
        UP: codes(200, 520),
        UP + "_scale_inv": positive(2, 5),
        EXPERTS + "_blocks": nbytes(2, 96, 4, 16),
        EXPERTS + "_scales": nbytes(2, 96, 4, low=112, high=126),
        NORM: torch.ones(96, dtype=torch.bfloat16),
    }


def dequantized() -> dict[str, torch.Tensor]:
    """The same values as fp32, but for the norm, worked out by torch."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    stored = quantized()
    experts = convert_moe_packed_tensors(stored[EXPERTS + "_blocks"], stored[EXPERTS + "_scales"], dtype=torch.float32)
    up = stored[UP].float() * expanded(stored[UP + "_scale_inv"], (200, 520), (128, 128))
    return {UP: up, EXPERTS: experts.transpose(1, 2), NORM: stored[NORM]}


_OF_BITS = ("lineage", "fossil_rows", "dtype")


def comparable(report: DtypeReport) -> dict[str, Any]:
    """What does not depend on how values are stored. Norms to 12 digits: squares are summed chunk by chunk."""
    value = parsed(report)
    rows = [{name: field for name, field in row.items() if name not in _OF_BITS} for row in value["tensors"]]
    for row in (*rows, value["extremes"]):
        for name in ("norm", "norm_min", "norm_max"):
            if name in row:
                row[name] = float(f"{row[name]:.12g}")
    kept = ("counts", "representable", "exponents", "fp16_risk", "values_read", "selected_parameters", "extremes")
    return {name: value[name] for name in kept} | {"tensors": rows, "parameters": value["checkpoint"]["parameters"]}


def test_decoded_values_are_those_of_the_dequantized_tensors(tmp_path: Path) -> None:
    stored = exact(write(tmp_path / "quantized", quantized()))
    plain = exact(write(tmp_path / "plain", dequantized()))
    assert comparable(stored) == comparable(plain)
    assert stored.bytes_read == sum(t.numel() * t.element_size() for t in quantized().values())


def test_storage_names_what_is_stored(tmp_path: Path) -> None:
    report = exact(write(tmp_path, quantized()))
    rows = {row.dtype: (row.tensors, row.parameters, row.bytes) for row in report.storage}
    assert rows == {
        "F8_E4M3": (1, 104_000, 104_000), "MXFP4": (1, 24_576, 12_288), "BF16": (1, 96, 192), "U8": (1, 0, 768), "F32": (1, 0, 40),
    }  # fmt: skip
    notes = {row.dtype: row.note for row in report.storage}
    assert notes["F32"] == notes["U8"] == "scales of other tensors" and notes["BF16"] == ""
    assert (notes["F8_E4M3"], notes["MXFP4"]) == ("decoded: fp8 F8_E4M3 in blocks of 128 x 128", "decoded: MXFP4 in groups of 32")
    assert [(row.name, row.dtype, row.shape) for row in report.tensors] == [
        (EXPERTS, "MXFP4", (2, 96, 128)), (UP, "F8_E4M3", (200, 520)), (NORM, "BF16", (96,)),
    ]  # fmt: skip
    assert [note.code for note in report.notes] == ["decoded"]
    assert report.selected_tensors == 3 and report.checkpoint.parameters == report.selected_parameters == 128_672


def test_decoded_values_are_no_upcast(tmp_path: Path) -> None:
    """MXFP4 values as fp32 are exact in bf16; that is no trace of bf16."""
    report = exact(write(tmp_path, {name: tensor for name, tensor in quantized().items() if name.startswith(EXPERTS)}))
    assert (report.lineage.stored, report.lineage.verdict, report.lineage.passed_through) == ("MXFP4", "undecided", ())
    assert report.representable.bf16 == 1.0 and report.lineage.evidence == ()
    assert report.answer.code == "not-tested"
    assert (report.training.verdict, report.training.basis) == ("undecided", "classifier")


def large() -> dict[str, torch.Tensor]:
    """Enough for quick mode to leave most of it unread."""
    tensors: dict[str, torch.Tensor] = {}
    for i in range(6):
        name = f"model.layers.{i}.mlp.down_proj.weight"
        tensors |= {name: codes(512, 1024, seed=i), f"{name}_scale_inv": positive(4, 8, seed=i)}
        name = f"model.layers.{i}.mlp.experts.down_proj"
        tensors |= {f"{name}_blocks": nbytes(4, 256, 8, 16, seed=i), f"{name}_scales": nbytes(4, 256, 8, low=112, high=126, seed=i)}
    return tensors


def test_quick_mode_keeps_to_budget_and_requests(tmp_path: Path, hub: LocalHub) -> None:
    folder = write(tmp_path, large())
    hub.add("org/scaled", {"model.safetensors": folder / "model.safetensors"})
    local, remote = inspect(folder, budget=300_000, seed=3), inspect("org/scaled", budget=300_000, seed=3)
    whole = exact(folder)
    for quick in (local, remote):
        assert 150_000 < quick.bytes_read <= 300_000 < whole.bytes_read and 0 < quick.values_read < whole.values_read
        assert quick.extremes.norm_max == pytest.approx(whole.extremes.norm_max, rel=0.2)
        for name, share in whole.representable.model_dump().items():
            interval = quick.intervals[f"representable.{name}"]
            assert interval.low <= share <= interval.high
    assert steady(exact("org/scaled"))["tensors"] == steady(whole)["tensors"]


def test_scales_are_counted_as_requests(tmp_path: Path, hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    from analyzers.checkpoints.hub.hub_repository import HubRepository

    monkeypatch.setattr(HubRepository, "range_requests", 40)
    folder = write(tmp_path, large())
    hub.add("org/scaled", {"model.safetensors": folder / "model.safetensors"})
    before = sum(hub.totals().values())
    report = inspect("org/scaled", budget=1_000_000)
    assert 20 < report.requests <= 40
    assert before <= sum(hub.totals().values())


# Packed integers that nothing says how to decode
INTEGERS: dict[str, tuple[dict[str, torch.Tensor], dict[str, Any]]] = {
    "gptq": ({"a.qweight": torch.zeros(32, 64, dtype=torch.int32), "a.scales": positive(2, 64).half()}, {"bits": 4}),
    "compressed-tensors": ({"a.weight_packed": torch.zeros(8, 8, dtype=torch.int32), "a.weight_scale": positive(8, 2)}, {}),
    "aqlm": ({"a.codes": torch.zeros(8, 8, 2, dtype=torch.int16), "a.codebooks": positive(2, 16, 1, 8).half()}, {}),
}


@pytest.mark.parametrize("method", INTEGERS)
def test_integers_are_refused_by_name(method: str, tmp_path: Path) -> None:
    tensors, settings = INTEGERS[method]
    config = {"quantization_config": settings | {"quant_method": method}}
    folder = write(tmp_path, {**tensors, "model.norm.weight": normal(64)}, config)
    with pytest.raises(UnsupportedWeights) as error:
        exact(folder)
    assert f"holds {method} weights" in str(error.value) and "include" in str(error.value)
    assert [row.name for row in exact(folder, include="norm|qweight|codes$|packed|weight$").tensors] == ["model.norm.weight"]


def test_codes_whose_scale_was_never_applied(tmp_path: Path) -> None:
    """fp8 codes and integers saved as bf16, as by a conversion that lost the scales: they are no format of training."""
    weight = normal(64, 96)
    fp8 = (weight / weight.abs().max() * 448).to(torch.float8_e4m3fn).bfloat16()
    whole = (weight / weight.abs().max() * 127).round().half()
    report = exact(write(tmp_path, {"a.weight": fp8, "b.weight": whole, "c.weight": weight.bfloat16(), "d.weight": 8 * weight.bfloat16()}))
    (note,) = (note for note in report.notes if note.code == "bare-codes")
    assert note.values == {"tensors": 2, "name": "a.weight", "formats": ("fp8 E4M3", "int8"), "largest": 448.0}
