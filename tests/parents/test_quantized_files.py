"""Quantized files against their source: a copy is one, whatever made it; a tensor that is not the source's is named, and no other."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cases import few
from tests.parents import quantized_files as files
from tests.parents.checkpoints import BF16, F32, Folder, Tensors, asked, model, tuned

SOURCE = model(10, width=256, layers=3)
VICTIM, OTHER = "model.layers.1.mlp.up_proj.weight", "model.layers.2.mlp.up_proj.weight"
FORMATS: dict[str, Callable[..., str]] = {
    "fp8": files.fp8,
    "NVFP4": files.nvfp4,
    "MLX": files.mlx,
    "MLX, 8 bits": partial(files.mlx, bits=8),
    "GPTQ": files.gptq,
    "GPTQ, nearest": partial(files.gptq, calibrated=False),
    "GPTQ, 2 bits": partial(files.gptq, bits=2),
    "AWQ": files.awq,
    "Q8_0": files.ggml,
    "Q4_0": partial(files.ggml, kind="Q4_0"),
}
CALIBRATED = ("GPTQ", "GPTQ, 2 bits", "AWQ")


def _overwritten(x: torch.Tensor) -> torch.Tensor:
    """Overwrite a block of 32 rows and 64 columns by values of the same size."""
    damaged = x.clone()
    damaged[64:96, 64:128] = x[128:160, :64]
    return damaged


DAMAGES: dict[str, Callable[[Tensors], torch.Tensor]] = {
    "another layer's": lambda source: source[OTHER],
    "an older step's": lambda source: tuned(source, 0.2, 9)[VICTIM],
    "a block overwritten": lambda source: _overwritten(source[VICTIM]),
    "rows shifted": lambda source: source[VICTIM].roll(1, 0),
    "scaled": lambda source: 1.37 * source[VICTIM].to(F32),
    "signs flipped": lambda source: -source[VICTIM],
}
RELATIONS = {"an older step's": "changed", "scaled": "affine", "signs flipped": "affine"}
# Calibration moves values as far as an older step's are; channels that AWQ scales have factors of their own.
UNSEEN = {("an older step's", name) for name in CALIBRATED} | {("scaled", "AWQ"), ("signs flipped", "AWQ")}
CASES = [(damage, name) for damage in DAMAGES for name in FORMATS if (damage, name) not in UNSEEN]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return Folder(tmp_path_factory.mktemp("source")).write("source", SOURCE)


@pytest.mark.parametrize("mode", ["quick", "exact"])
@pytest.mark.parametrize("name", FORMATS)
def test_a_copy(name: str, mode: Any, source: str, tmp_path: Path) -> None:
    report = asked(FORMATS[name](tmp_path / "copy", SOURCE), source, mode=mode)
    assert (report.verdict, report.parents, report.answer.code) == ("quantized-copy", (source,), "quantized")
    assert {row.relation for row in report.conversion} <= {"rounded", "equal", "affine"}
    copy = report.quantized
    assert copy is not None and not copy.not_source and len(copy.tensors) == 12
    assert copy.error is not None and copy.error_of_nearest is not None and copy.ratio is not None and copy.within_half_step is not None
    assert copy.calibrated == (name in CALIBRATED) and (name in CALIBRATED or (copy.ratio < 1.3 and copy.within_half_step > 0.8))


@pytest.mark.parametrize(("damage", "name"), few(CASES, range(0, len(CASES), 5), [f"{damage}-{name}" for damage, name in CASES]))
def test_the_damaged_tensor_is_named_and_no_other(damage: str, name: str, source: str, tmp_path: Path) -> None:
    state = SOURCE | {VICTIM: DAMAGES[damage](SOURCE)}
    for mode in ("exact", "quick"):
        report = asked(FORMATS[name](tmp_path / "copy", state), source, mode=mode)
        assert report.verdict == "quantized-copy" and report.quantized is not None
        (odd,) = report.quantized.not_source
        assert odd in (VICTIM, "blk.1.ffn_up.weight") and report.answer.values["names"] == (odd,)
        (row,) = (row for row in report.quantized.tensors if row.name == odd)
        assert row.relation == RELATIONS.get(damage, "other") and report.advice.code == "requantize"


def test_the_figures_against_the_definitions(source: str, tmp_path: Path) -> None:
    """In fp8, within half a step: no other code is nearer; rounding to nearest is torch's."""
    report = asked(files.fp8(tmp_path / "copy", SOURCE | {VICTIM: tuned(SOURCE, 0.05, 9)[VICTIM]}), source, mode="exact")
    assert report.quantized is not None
    (row,) = (row for row in report.quantized.tensors if row.name == VICTIM)
    made = tuned(SOURCE, 0.05, 9)[VICTIM].to(F32).reshape(8, 64, 4, 64)
    scale = made.abs().amax(dim=(1, 3), keepdim=True) / 448
    codes, p = (made / scale).to(torch.float8_e4m3fn), SOURCE[VICTIM].to(F32).reshape(8, 64, 4, 64)
    x, nearest = codes.to(F32) * scale, (p / scale).clamp(-448, 448).to(torch.float8_e4m3fn).to(F32) * scale
    table = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float64)
    every = torch.unique(table[table.isfinite()])
    at = torch.searchsorted(every, codes.to(torch.float64))
    step = every.diff()
    gap = torch.where(p > x, step[at.clamp(max=len(step) - 1)], step[(at - 1).clamp(min=0)]) * scale
    within = ((x - p).abs().double() <= gap / 2 * (1 + 1e-6)).double().mean()
    error, rounding = ((each - p).double().norm() / p.double().norm() for each in (x, nearest))
    assert row.within_half_step == pytest.approx(float(within), abs=1e-4)
    assert (row.error, row.error_of_nearest) == pytest.approx((float(error), float(rounding)), rel=1e-6)
    assert row.ratio == pytest.approx(float(error / rounding), rel=1e-6) and row.relation == "changed"


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_no_copy(name: str, source: str, tmp_path: Path) -> None:
    """An unrelated model that was quantized in the same way, and a fine-tune that differs by less than half of its rounding error.

    In a layout of calibrated methods the latter may be a calibrated copy as well."""
    unrelated = asked(FORMATS[name](tmp_path / "unrelated", model(11, width=256, layers=3)), source, mode="exact")
    assert unrelated.verdict == "unrelated" and unrelated.quantized is not None and len(unrelated.quantized.not_source) >= 12
    if name not in (*CALIBRATED, "GPTQ, nearest"):
        error = unrelated.quantized.error_of_nearest or 0.0
        child = asked(FORMATS[name](tmp_path / "child", tuned(SOURCE, 0.6 * error)), source, mode="exact")
        assert (child.verdict, child.answer.code) == ("derived", "quantized-derived")


def test_a_copy_of_a_copy_and_of_its_source(source: str, tmp_path: Path) -> None:
    first = files.fp8(tmp_path / "first", SOURCE)
    back: Tensors = {}
    for name, x in SOURCE.items():
        if files.is_quantized(name, x):
            blocks = x.to(F32).reshape(x.shape[0] // 64, 64, x.shape[1] // 64, 64)
            scale = blocks.abs().amax(dim=(1, 3), keepdim=True) / 448
            x = ((blocks / scale).to(torch.float8_e4m3fn).to(F32) * scale).reshape(x.shape)
        back[name] = x
    second = files.nvfp4(tmp_path / "second", back)
    alone, both = asked(second, first, mode="exact"), asked(second, source, first, mode="exact")
    assert (alone.verdict, both.verdict, both.parents) == ("quantized-copy", "quantized-copy", (first,))
    assert alone.quantized is not None and alone.quantized.ratio == pytest.approx(1)
    assert asked(first, second, mode="exact").verdict == "derived"  # more bits than its source


def test_a_part_is_quantized_and_a_tied_head_is_not_stored(tmp_path: Path) -> None:
    tied = dict(SOURCE) | {"lm_head.weight": SOURCE["model.embed_tokens.weight"].clone()}
    source = Folder(tmp_path).write("source", tied, {"model_type": "llama", "tie_word_embeddings": True})
    copy = files.nvfp4(tmp_path / "copy", SOURCE, kept=lambda name: "layers.1" in name)
    report = asked(copy, source, mode="exact")
    assert report.verdict == "quantized-copy" and report.quantized is not None and len(report.quantized.tensors) == 8
    assert report.coverage[0].whole and report.coverage[1].whole and {row.relation for row in report.conversion} == {"rounded", "equal"}
    state = SOURCE | {"model.embed_tokens.weight": model(3, width=256)["model.embed_tokens.weight"].to(BF16)}
    report = asked(files.nvfp4(tmp_path / "other", state), source, mode="exact")
    assert report.verdict == "quantized-copy" and report.answer.values["names"] == ("model.embed_tokens.weight",)
