"""Of grids that a part of the values has left, the quantizer's is named, or what is known of it."""

import pytest

from tests.grids.fossils import fossils, found, verdict

NAMED = (
    "int4 32, 5% values, bfloat16", "int4 32, 20% rows, float32", "int8 row, 5% step, float16", "int5 tensor, 10% rows, float32",
    "int4_offset 32, 20% rows, float32", "bitsandbytes nf4, 1% values, bfloat16", "torchao nvfp4 single, 10% values, float16",
    "gpt-oss mxfp4, 5% values, float32", "e4m3 row, 10% rows, bfloat16",
)  # fmt: skip


@pytest.mark.parametrize("title", NAMED)
def test_the_grid_of_the_quantizer_is_named(title: str) -> None:
    (case,) = [case for case in fossils() if case.title == title]
    grid = found(case.values())
    assert grid is not None and not grid.proven and verdict(case.form, grid) in ("right", "hedged"), grid
