"""The figure of one group on its grid, its caption, and the offer to store codes: from real weights on a grid."""

from pathlib import Path

import numpy as np
import pytest

from analyzers.dtype_detection import DtypeReport
from components.dtype.grid_plot import caption, group_on_grid
from components.dtype.result import RESULT, passport
from tests.components.dtype_reports import report
from tests.components.html_text import text_of
from tests.dtype_detection.checkpoints import normal, write
from tests.dtype_detection.reports import exact
from tests.grids.formats import FORMATS, dequantized

UP = "model.layers.0.mlp.up_proj.weight"


def of(quantizer: str, folder: Path, storage: str = "bf16") -> DtypeReport:
    form = next(form for form in FORMATS if form.name == quantizer)
    return exact(write(folder, {UP: dequantized(form, storage, "gaussian", rows=128)}))


@pytest.mark.parametrize(
    ("quantizer", "weights", "levels"),
    [("torchao int4 group 32", 32, 16), ("gguf Q4_K", 32, 16), ("torchao int8 row", 128, 31)],
)  # fmt: skip
def test_weights_are_drawn_on_their_levels(quantizer: str, weights: int, levels: int, tmp_path: Path) -> None:
    found = of(quantizer, tmp_path)
    example = found.grids[0].example
    assert example is not None and len(example.values) == weights and example.name == UP
    lines, points = group_on_grid(found).data
    drawn = np.array([value for value in lines.y if value is not None])[::2]
    assert len(drawn) <= levels and len(points.y) > 10
    rounding = 2.0**-8 * np.abs(example.values).max()  # of bf16
    assert all(np.abs(drawn - value).min() <= rounding for value in points.y)
    assert np.diff(drawn).min() > rounding / 2 or len(example.levels) > levels
    assert str(weights) in caption(found) and UP in caption(found)
    assert ("outside the range" in caption(found)) == (len(points.y) < weights)
    assert "Grid" in [tab.name for tab in RESULT.tabs if tab.shows(found)]


def test_values_are_as_stored(tmp_path: Path) -> None:
    form = next(form for form in FORMATS if form.name == "torchao int4 group 32")
    example = of(form.name, tmp_path).grids[0].example
    assert example is not None and example.values == tuple(dequantized(form, "bf16", "gaussian", rows=128)[0, :32].tolist())


def test_the_passport_names_the_grid(tmp_path: Path) -> None:
    form = next(form for form in FORMATS if form.name == "compressed-tensors int4 group 32")
    tensors = {UP: dequantized(form, "bf16", "gaussian"), "lm_head.weight": normal(64, 512).bfloat16()}
    found = exact(write(tmp_path, tensors))
    assert "int4 in groups of 32, in part" in text_of(passport(found))


def test_without_grids_there_is_no_tab() -> None:
    assert "Grid" not in [tab.name for tab in RESULT.tabs if tab.shows(report())]
    assert "No group is drawn" in caption(report()) and not group_on_grid(report()).data
