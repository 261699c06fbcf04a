"""What reports say in words: numbers with their nouns, which values were asked, and no two sentences that contradict each other."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save

from analyzers.dtype_detection import DtypeReport, DtypeRequest, analyze
from analyzers.errors import NoWeights, UnsupportedWeights
from tests.dtype_detection.checkpoints import from_fp8, normal, write
from tests.dtype_detection.reports import exact, parsed

BF16, F16, E4M3 = torch.bfloat16, torch.float16, torch.float8_e4m3fn
Tensors = dict[str, torch.Tensor]


def spoiled(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Weights with ``values`` in place of the first of them."""
    tensor = normal(64, 64)
    tensor.view(-1)[: len(values)] = torch.tensor(values)
    return tensor.to(dtype)


# Checkpoints of one of everything that is counted in a sentence.
ONES: dict[str, Tensors] = {
    "one tensor": {"a.weight": normal(64, 64)},
    "one value": {"a.weight": normal(1)},
    "one run": {"a.weight": normal(64)},
    "one buffer": {"a.weight": normal(64, 64), "position_ids": torch.arange(9)},
    "one overflow": {"a.weight": spoiled(1e5, float("nan"))},
    "one of fp8": {"a.weight": normal(128, 128).to(E4M3)},
    "one of fp8 with one scale": {"a.weight": normal(128, 128).to(E4M3), "a.weight_scale": torch.tensor(2.0)},
    "one of fp8 with a misfit": {"a.weight": normal(200, 200).to(E4M3), "a.weight_scale_inv": torch.ones(3, 7)},
    "one tiny value": {"a.weight": spoiled(1e-44)},
    "one row": {"a.weight": torch.cat([normal(1, 64).to(BF16).float(), normal(63, 64, seed=1)])},
    "one tensor of fp8 values": {"a.weight": from_fp8(normal(128, 1280), E4M3, BF16)},
    "zero": {"a.weight": torch.zeros(1)},
    "one of integers": {"a.weight": normal(64, 64), "b.fc": torch.ones(8, 8, dtype=torch.int8)},
}
NOUNS = "tensors|parameters|values|runs|blocks|rows|weights|files|buffers|bytes|are|rule|have|become"


def said(report: DtypeReport) -> Iterator[str]:
    yield from (report.text(), report.lineage.statement, *report.fp16_risk.reasons, *report.notes)
    yield from (e.conclusion for e in report.lineage.evidence)


@pytest.mark.parametrize("name", ONES)
def test_one_is_no_plural(name: str, tmp_path: Path) -> None:
    for text in said(exact(write(tmp_path, ONES[name]))):
        assert not re.search(rf"(?<![\d.,] )(?<![\d.,\w-])1 ({NOUNS})\b", text), text


@pytest.mark.parametrize("values", [torch.ones(64, 64), torch.ones(64, 64) * 4, torch.tensor([0.0, 2, -1]).repeat(64, 32)])
@pytest.mark.parametrize("dtype", [torch.float32, BF16, F16])
def test_powers_of_two_are_asked_for_no_grid(values: torch.Tensor, dtype: torch.dtype, tmp_path: Path) -> None:
    lineage = exact(write(tmp_path, {"model.norm.weight": values.to(dtype)})).lineage
    assert lineage.verdict == "undecided" and lineage.statement.startswith("Too few different informative values to tell what came before")
    assert not {e.test for e in lineage.evidence} & {"fp4_blocks", "fp8_runs"}


def test_constants_are_on_a_grid_and_that_says_nothing(tmp_path: Path) -> None:
    statement = exact(write(tmp_path, {"model.norm.weight": torch.full((64, 64), 0.37)})).lineage.statement
    assert statement.startswith("What preceded fp32 is undecided: its blocks of 16 lie on the 4-bit float grid, but integers of few")


def test_each_question_says_which_values_it_was_put_to(tmp_path: Path) -> None:
    report = exact(write(tmp_path, {"a.weight": normal(128, 128).to(BF16), "b.weight": normal(64, 64)}))
    asked = [(e.test, e.stored) for e in report.lineage.evidence]
    assert asked == [
        ("fp16_grid", "BF16"), ("fp8_runs", "BF16"),
        ("bf16_exact", "F32"), ("fp16_exact", "F32"), ("fp8_runs", "F32"),
    ]  # fmt: skip
    assert {e.stored for row in report.tensors for e in row.lineage.evidence} == {"BF16", "F32"}
    assert all(e.stored == row.dtype for row in report.tensors for e in row.lineage.evidence)
    # The statement on bf16 values rests on those.
    assert "No narrower format survives in the bf16 values: 128 of 128 runs rule fp8_e4m3 out" in report.lineage.statement
    lines = report.text().splitlines()
    (heading,) = (line for line in lines if line.startswith("Test "))
    assert "Stored" in heading.split() and sum(line[heading.index("Stored") :].startswith("BF16 ") for line in lines) == 2
    assert "Stored  " not in exact(write(tmp_path / "one", {"a.weight": normal(64, 64)})).text()


def test_reports_from_before_evidence_named_its_dtype_are_read(tmp_path: Path) -> None:
    value = parsed(exact(write(tmp_path, {"a.weight": normal(64, 64)})))
    for evidence in (*value["lineage"]["evidence"], *value["tensors"][0]["lineage"]["evidence"]):
        del evidence["stored"]
    report = DtypeReport.model_validate(value | {"analysis_version": 2})
    assert {e.stored for e in report.lineage.evidence} == {""} and "Conclusion" in report.text()


def test_scales_that_do_not_fit_are_no_weights_and_no_contradiction(tmp_path: Path) -> None:
    weight = normal(200, 200).to(E4M3)
    report = exact(write(tmp_path, {"a.weight": weight, "a.weight_scale_inv": torch.full((3, 7), 999.0)}))
    assert report.notes == (
        '"a.weight" has scales that do not fit it in shape or dtype: these are not applied.',
        "Described by stored values, since no matching scales were found: 1 tensor (F8_E4M3).",
        "Not parameters, and excluded from all statistics: 1 tensor of scales.",
    )
    assert report.extremes.abs_max == float(weight.float().abs().max()) and report.selected_parameters == 200 * 200


def test_empty_tensors(tmp_path: Path) -> None:
    with pytest.raises(NoWeights, match="holds no values: its only tensor is empty"):
        exact(write(tmp_path / "one", {"a.weight": torch.zeros(0, 64)}))
    with pytest.raises(NoWeights, match="holds no values: all of its 2 tensors are empty"):
        exact(write(tmp_path / "two", {"a.weight": torch.zeros(0, 64), "b.weight": torch.zeros(0)}))
    (tmp_path / "two" / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt").write_bytes(bytes(8))
    with pytest.raises(NoWeights, match=r"are empty\. Not read: .* partitions of DeepSpeed ZeRO: join them with 'python zero_to_fp32\.py"):
        exact(tmp_path / "two")
    integers = {"a.weight": torch.zeros(0, 64), "b.weight_packed": torch.zeros(8, dtype=torch.int32)}
    with pytest.raises(UnsupportedWeights, match=r"its parameters are I32\.$"):
        exact(write(tmp_path / "integers", integers), include="weight")
    report = exact(write(tmp_path / "beside", {"a.weight": torch.zeros(0, 64), "b.weight": normal(64, 64)}))
    assert (report.lineage.verdict, report.selected_tensors) == ("native", 2)


def test_a_matrix_of_int8_is_a_weight(tmp_path: Path) -> None:
    """Without a word of configuration: where it is most of the checkpoint nothing is said, else what the rest says."""
    codes = torch.arange(-128, 128).repeat(16, 1).to(torch.int8)
    with pytest.raises(UnsupportedWeights, match="inspect the original model, or with dtype only the tensors that are still floats"):
        exact(write(tmp_path / "most", {"layers.0.fc": codes, "norm.weight": normal(64)}))
    with pytest.raises(UnsupportedWeights, match=r"The bits of integers say nothing about training: inspect the original model\.$"):
        exact(write(tmp_path / "all", {"layers.0.fc": codes}))
    report = exact(write(tmp_path / "few", {"layers.0.fc": codes, "up.weight": normal(96, 96)}))
    assert report.buffers == () and report.checkpoint.quantization == "integer" and report.lineage.verdict == "native"
    assert any("Not plain floats, and excluded from all statistics: 1 tensor (I8; 30.8% of the elements)" in note for note in report.notes)
    assert report.fp16_risk.level == "fits"
    assert report.fp16_risk.reasons[0] == "The check excludes 1 tensor (I8; 30.8% of the elements), whose values are not decoded."


def test_an_adapter_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "adapter_model.safetensors").write_bytes(save({"base_model.model.q_proj.lora_A.weight": normal(4, 64)}))
    report = exact(tmp_path)
    assert "This is an adapter (LoRA or the like): all results are about its own parameters" in report.notes[0]
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/base\x1b[31m"}))
    assert 'an adapter (LoRA or the like) of "org/base<U+001B>[31m", as its adapter_config.json says: ' in exact(tmp_path).notes[0]
    (tmp_path / "model.safetensors").write_bytes(save({"model.layers.0.mlp.up_proj.weight": normal(64, 64)}))
    assert not any("adapter (" in note for note in exact(tmp_path).notes)


def test_computed_weights_are_not_called_stored() -> None:
    request = DtypeRequest(model="sample:tiny-bf16+sample:tiny-adapter", mode="exact")
    (report,) = (item for item in analyze(request) if isinstance(item, DtypeReport))
    assert "Merging computes 31.9% of its weights, in fp32; the others are stored in bf16." in report.headline()
    assert "It is stored in" not in report.headline()


def test_an_adapter_beside_weights_is_said_to_be_one(tmp_path: Path) -> None:
    weights = {f"model.layers.{i}.self_attn.q_proj.base_layer.weight": normal(64, 64, seed=i) for i in range(3)}
    query = "model.layers.0.self_attn.q_proj"
    lora = {f"{query}.lora_A.default.weight": normal(4, 64), f"{query}.lora_B.default.weight": normal(64, 4)}
    (note,) = exact(write(tmp_path, weights | lora)).notes
    assert note.startswith('2 tensors belong to an adapter (LoRA or the like) that is not merged, from "model.layers.0')
    assert not exact(write(tmp_path / "plain", weights)).notes


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_do_not_fit_fp16(value: float, tmp_path: Path) -> None:
    report = exact(write(tmp_path, {"a.weight": spoiled(value)}))
    assert report.fp16_risk.level == "broken" and not any("fit" in reason for reason in report.fp16_risk.reasons)
    assert "weights not finite" in report.text() and "weights fit" not in report.text()


@pytest.mark.parametrize(("stated", "shown"), [("half", "float16"), ("torch.double", "float64"), ("BF16", "bfloat16"), ("auto", "auto")])
def test_the_configurations_dtype_is_named_as_in_torch(stated: str, shown: str, tmp_path: Path) -> None:
    assert exact(write(tmp_path, {"a.weight": normal(64, 64)}, {"torch_dtype": stated})).config_dtype == shown


@pytest.mark.parametrize(("largest", "noted"), [(2.0**127, False), (2.0**128, True), (-(2.0**1000), True)])
def test_magnitudes_too_large_for_a_bin_of_their_own(largest: float, noted: bool, tmp_path: Path) -> None:
    report = exact(write(tmp_path, {"a.weight": torch.tensor([largest, 3.0], dtype=torch.float64)}))
    assert {e.exponent: e.count for e in report.exponents} == {127: 1, 1: 1} and report.extremes.abs_max == abs(largest)
    said = [note for note in report.notes if "spectrum" in note]
    assert said == (["The spectrum of exponents counts values from 2^128 on at 2^127."] if noted else [])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_magnitudes_too_small_for_a_bin_of_their_own(dtype: torch.dtype, tmp_path: Path) -> None:
    """They are counted, at one exponent, and a note says so; bf16 tells its smallest values apart."""
    least = 1e-44 if dtype is torch.float32 else 1e-300
    tensor = torch.tensor([least, -least, 2.0**-133, 2.0**-126, 3.0] * 8, dtype=dtype)
    report = exact(write(tmp_path, {"a.weight": tensor}))
    assert {e.exponent: e.count for e in report.exponents} == {-134: 16, -133: 8, -126: 8, 1: 8}
    expected = "16 nonzero values are below 2^-133: the spectrum of exponents counts all of that at 2^-134."
    assert [note for note in report.notes if "spectrum" in note] == [expected]
    assert report.extremes.abs_min_nonzero == pytest.approx(float(np.float32(least)) if dtype is torch.float32 else least)
    in_bf16 = exact(write(tmp_path / "bf16", {"a.weight": tensor[2:5].to(BF16)}))
    assert [e.exponent for e in in_bf16.exponents] == [-133, -126, 1] and not any("spectrum" in note for note in in_bf16.notes)
