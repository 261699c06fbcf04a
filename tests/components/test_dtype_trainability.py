"""The passport's further readings: movable weights, untouched tensors, quantization, and what could be done."""

import shlex
from pathlib import Path

import pytest
import torch

from analyzers.checkpoints import Access
from analyzers.dtype_detection import DtypeReport, DtypeRequest, analyze
from analyzers.dtype_detection.advice import suggestions
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
    for said in (
        "pure bf16 training can move",
        "3 of 3 norms have at least half of the entries at exactly 1",
        "Each BF16 weight carries",
        "What you could do",
        "This is the error of the weights alone",
        "[&#34;model.layers.1.mlp.up_proj&#34;]",
    ):
        assert said in page, said
    assert "&lt;p" not in page
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


def test_suggestions_have_commands_that_exist_and_are_one_line_that_opens(folder: Path) -> None:
    from analyzers.__main__ import build_parser

    upcast = write(folder.parent / "up cast", {"a.weight": normal(64, 64).to(torch.bfloat16).to(torch.float32)})
    many = report("sample:tiny-bf16", mode="quick", budget=50_000)
    for found in (report(folder), report(upcast), report("sample:tiny-overflow"), many):
        said = suggestions(found)
        for each in said:
            program, command, *words = shlex.split(each.command)
            assert program == "mantissa" and found.checkpoint.ref in words
            build_parser({command}).parse_args([command, *words])
        shown, _, folded = RESULT.headline(found, False).partition(f"<summary>What you could do ({len(said)})</summary>")
        assert "<code>mantissa" not in shown and folded.count("<code>mantissa") == len(said) > 0
    assert len(suggestions(many)) > 3
    assert suggestions(report("sample:tiny-overflow"))[0].command == "mantissa precision sample:tiny-overflow --variants bf16,fp16"


def test_a_wide_file_of_narrow_values_is_to_be_shrunk(folder: Path) -> None:
    upcast = write(folder.parent / "upcast", {"a.weight": normal(64, 64).to(torch.bfloat16).to(torch.float32)})
    first = suggestions(report(upcast))[0]
    assert first == ("Store it narrower, in bf16: 8.19 kB less, and no value changes.", f"mantissa shrink {upcast} --out FOLDER")
    sampled = suggestions(report(upcast, mode="quick", budget=8_000))[0].advice
    assert sampled.endswith("8.19 kB less, and shrink looks at every value before it writes any.")
    native = write(folder.parent / "native", {"a.weight": normal(64, 64)})
    assert not any("shrink" in each.command for model in (folder, native) for each in suggestions(report(model)))


def test_what_is_not_finite_comes_before_everything_else(folder: Path) -> None:
    weights = normal(64, 64)
    weights[3, 4], weights[5, 6] = float("nan"), float("-inf")
    broken = report(write(folder.parent / "broken", {"a.weight": weights}))
    assert suggestions(broken)[0].command == f"mantissa check {folder.parent / 'broken'}"
    assert "2 weights are NaN or infinite: go back to a checkpoint without NaN and infinities." in RESULT.headline(broken, False)
    only = broken.model_copy(update={"counts": broken.counts.model_copy(update={"nan": 2, "inf": 0})})
    assert only.headline().startswith("Broken: 2 weights are NaN.")
    assert only.next_step().advice == "2 weights are NaN: go back to a checkpoint without NaN."


def test_formats_are_in_the_link_and_the_command(folder: Path) -> None:
    found = report("sample:tiny-bf16", quantize=("fp8", "int4"))
    assert "quantize=fp8%2Cint4" in form.permalink(as_read(found)) and "--quantize=fp8,int4" in command(as_read(found))
    typed = form.filled([("model", "sample:tiny-bf16"), ("quantize", "int4,fp8"), ("mode", "exact")])
    assert typed["quantize"] == ["int4", "fp8"] and form.request(typed) == found.request
