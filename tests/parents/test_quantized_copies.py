"""A quantized copy is a step function of its source, within the values that share a scale; a fine-tune of the source is another model."""

from pathlib import Path

import pytest
import torch

from tests.cases import few
from tests.grids.formats import FORMATS
from tests.parents.checkpoints import BF16, F32, Folder, Tensors, model, tuned

SOURCE = model(10, width=256)
QUANTIZERS = (
    "torchao int4 group 32", "torchao int8 row", "torchao int4 group 32 zero", "torchao mxfp4", "torchao nvfp4", "gguf Q4_0", "gguf Q4_1",
    "bitsandbytes nf4", "bitsandbytes nf4 double", "e4m3 row",
)  # fmt: skip


def quantized(tensors: Tensors, name: str) -> Tensors:
    make = next(form.make for form in FORMATS if form.name == name)
    return {key: make(x.to(F32), F32).to(BF16) if x.dim() > 1 else x for key, x in tensors.items()}


@pytest.mark.parametrize("name", few(QUANTIZERS, {0, 4, 8}))
def test_a_rounded_copy(name: str, tmp_path: Path) -> None:
    report = Folder(tmp_path).parents(quantized(SOURCE, name), SOURCE, model(11, width=256))
    assert report.verdict == "quantized-copy" and report.parents[0].endswith("c0")
    assert {row.relation for row in report.conversion} == {"rounded", "equal"}
    assert {row.note.code for row in report.conversion if row.relation == "rounded" and row.note} == {"steps"}


def test_a_fine_tune_of_the_source_is_quantized_to_other_values(tmp_path: Path) -> None:
    report = Folder(tmp_path).parents(quantized(tuned(SOURCE, 0.05), "torchao int4 group 32"), SOURCE)
    assert report.verdict == "derived" and {row.relation for row in report.conversion if row.values > 1000} == {"changed"}


def test_codes_of_fp8(tmp_path: Path) -> None:
    copy: Tensors = {}
    for name, x in SOURCE.items():
        scale = x.to(F32).abs().max() / 448
        copy |= {name: (x.to(F32) / scale).to(torch.float8_e4m3fn), f"{name}_scale": scale} if x.dim() > 1 else {name: x}
    report = Folder(tmp_path).parents(copy, SOURCE, mode="exact")
    assert report.verdict == "quantized-copy" and {row.relation for row in report.conversion} == {"rounded", "equal"}
