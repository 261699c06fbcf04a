"""The passport's further readings: movable weights, untouched tensors, quantization."""

from pathlib import Path

import pytest
import torch

from analyzers.checkpoints import Access
from analyzers.dtype_detection import DtypeReport, DtypeRequest, analyze
from components.dtype import form
from components.dtype.plots import movable
from components.dtype.result import RESULT
from components.forms.form import as_read, command
from tests.dtype_detection.checkpoints import normal, write


def report(model: str | Path, **options: object) -> DtypeReport:
    *_, found = analyze(DtypeRequest.model_validate({"model": str(model), "mode": "exact", **options}), Access(local=True))
    assert isinstance(found, DtypeReport)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tensors = {f"model.layers.{layer}.mlp.up_proj.weight": normal(64, 256, seed=layer).to(torch.bfloat16) for layer in range(3)}
    tensors["model.layers.1.mlp.up_proj.weight"][:, ::128] *= 20
    tensors |= {f"model.layers.{layer}.input_layernorm.weight": torch.ones(256, dtype=torch.bfloat16) for layer in range(3)}
    return write(tmp_path_factory.mktemp("readings"), tensors)


def test_the_page_has_every_reading(folder: Path) -> None:
    found = report(folder, quantize=("int4", "nvfp4"))
    page = RESULT.document([found]).alone()
    for said in ("Constant, or mostly at an initial value", "Quantization by role", ">model.layers.1.mlp.up_proj<"):
        assert said in page, said
    assert [tab.name for tab in RESULT.tabs if tab.shows(found)][2:4] == ["Movable", "Quantization"]
    assert "Quantization" not in [tab.name for tab in RESULT.tabs if tab.shows(report(folder))]


def test_the_curve_is_the_reports(folder: Path) -> None:
    found = report(folder)
    assert found.movable is not None
    curves = {trace.name: trace for trace in movable(found).data}
    assert list(curves) == ["mlp", "norm", "fp32 masters, all weights"]
    assert list(curves["mlp"].x) == list(found.movable.steps)
    assert list(curves["mlp"].y) == pytest.approx([100 - 100 * frozen for frozen in found.movable.roles["mlp"]])


def test_names_of_rates_are_above_every_curve_and_cross_no_line(folder: Path) -> None:
    layout = movable(report(folder)).layout
    low, high = layout.yaxis.range
    assert all(note.y - 0.08 > (100 - low) / (high - low) for note in layout.annotations)
    by_rate = sorted(layout.shapes, key=lambda line: line.x0)
    assert [line.y1 for line in by_rate] == sorted(line.y1 for line in by_rate)
    assert {note.xanchor for note in layout.annotations} == {"right"}


def test_formats_are_in_the_link_and_the_command(folder: Path) -> None:
    found = report("sample:tiny-bf16", quantize=("fp8", "int4"))
    assert "quantize=fp8%2Cint4" in form.permalink(as_read(found)) and "--quantize=fp8,int4" in command(as_read(found))
    typed = form.filled([("model", "sample:tiny-bf16"), ("quantize", "int4,fp8"), ("mode", "exact")])
    assert typed["quantize"] == ["int4", "fp8"] and form.request(typed) == found.request
