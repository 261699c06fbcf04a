"""A quantized copy names its grid, and says of how many values the source, rounded on it, is the same."""

from pathlib import Path

import pytest
import torch

from analyzers.comparison.parents import ParentsReport
from analyzers.comparison.parents.report import Evidence
from tests.cases import few
from tests.grids.formats import FORMATS
from tests.parents.checkpoints import BF16, F32, Folder, Tensors, model, tuned

SOURCE = model(10, width=256)
QUANTIZERS = {
    "torchao int4 group 32": "int4 in groups of 32",
    "torchao int8 row": "int8 with a scale per row",
    "torchao int4 group 32 zero": "int4 with a zero point in groups of 32",
    "torchao mxfp4": "mxfp4 in groups of 32",
    "torchao nvfp4": "nvfp4 in groups of 16",
    "gguf Q4_0": "int4 in groups of 32",
    "gguf Q4_1": "int4 with an offset in groups of 32",
    "bitsandbytes nf4": "nf4 in groups of 64",
    "bitsandbytes nf4 double": "nf4 in groups of 64",
    "e4m3 row": "fp8 e4m3 with a scale per row",
}


def quantized(tensors: Tensors, name: str) -> Tensors:
    make = next(form.make for form in FORMATS if form.name == name)
    return {key: make(x.to(F32), F32).to(BF16) if x.dim() > 1 else x for key, x in tensors.items()}


def rounded(report: ParentsReport) -> Evidence:
    (found,) = [each for each in report.evidence if each.code == "on-grid"]
    return found


@pytest.mark.parametrize("name", few(QUANTIZERS, {0, 4, 8}))
def test_every_value_is_the_sources_rounded(name: str, tmp_path: Path) -> None:
    report = Folder(tmp_path).parents(quantized(SOURCE, name), SOURCE, model(11, width=256))
    assert report.verdict == "quantized-copy" and report.answer.values["grids"] == (QUANTIZERS[name],)
    found = rounded(report)
    assert found.kind == "proof" and found.values["nearest"] == found.values["values"]
    rows = [row for row in report.conversion if row.relation == "on-grid"]
    assert len(rows) == 17 and {row.to for row in rows} == {QUANTIZERS[name]} and not any(row.exceptions for row in rows)


def test_a_fine_tune_of_the_source_is_quantized_to_other_values(tmp_path: Path) -> None:
    child = tuned(SOURCE, 0.05)
    report = Folder(tmp_path).parents(quantized(child, "torchao int4 group 32"), SOURCE)
    found = rounded(report)
    same, compared = found.values["nearest"], found.values["values"]
    assert isinstance(same, int) and isinstance(compared, int) and found.kind == "measurement"
    assert 0 < same < 0.95 * compared and same / compared == pytest.approx(0.85, abs=0.12)
    assert not any(row.relation == "on-grid" for row in report.conversion)


def test_in_exact_mode_all_values_of_a_copy_are_compared(tmp_path: Path) -> None:
    copy, name = quantized(SOURCE, "torchao int4 group 32"), "model.layers.3.mlp.down_proj.weight"
    last = copy[name][-1, -32:]
    last[int(last.nonzero()[0])] *= -1
    report = Folder(tmp_path).parents(copy, SOURCE, mode="exact")
    matrices = sum(x.numel() for x in SOURCE.values() if x.dim() > 1)
    assert rounded(report).values["values"] == matrices and rounded(report).values["nearest"] == matrices - 1
    (row,) = [row for row in report.conversion if row.relation == "differs"]
    assert row.name == name and row.note is not None and row.note.values["nearest"] == row.values - 1


def test_a_step_function_does_not_prove_every_value(tmp_path: Path) -> None:
    """Matrices stored in fp8, of which one code is another's: nothing compared each value with the source rounded."""
    copy: Tensors = {}
    for name, x in SOURCE.items():
        scale = x.to(F32).abs().max() / 448
        copy |= {name: (x.to(F32) / scale).to(torch.float8_e4m3fn), f"{name}_scale": scale} if x.dim() > 1 else {name: x}
    codes = copy["model.layers.3.mlp.down_proj.weight"].view(torch.uint8)
    codes[0, 0] ^= 8
    report = Folder(tmp_path).parents(copy, SOURCE, mode="exact")
    rows = report.conversion
    steps = [row for row in rows if row.relation == "on-grid" and row.to is None]
    assert report.verdict == "quantized-copy" and len(steps) > 10
    assert {row.note.code for row in steps if row.note} == {"steps"} and {row.relation for row in rows} == {"on-grid", "equal"}
    assert not any(each.kind == "proof" and each.code == "on-grid" for each in report.evidence)
