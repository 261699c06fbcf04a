"""Runs of few significands, against an oracle that looks at one value after the other, and what they are for."""

from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from analyzers.numerics.few_significands import (
    ALL_E2M1,
    DULL,
    FEW_4,
    FEW_8,
    FIXED_BF16,
    MANY,
    OFF_E2M1,
    ON_E2M1,
    RUN_COUNTS,
    TELLING_4,
    TELLING_8,
    runs_of_few_significands,
)
from tests.numerics.slow_significands import slow_runs

FIELDS = {"BF16": (7, 8), "F16": (10, 5), "F32": (23, 8)}
LAYOUTS = [(128, 0, 1), (256, 3, 8), (200, 1, 3), (96, 2, 1), (40, 0, 5), (16, 0, 1), (640, 0, 4)]
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])

Values = NDArray[np.float64]


def stored(values: Values, dtype: str) -> NDArray[np.unsignedinteger]:
    """Patterns of ``values`` rounded to ``dtype``, by torch."""
    single = torch.from_numpy(values.astype(np.float32))
    if dtype == "F32":
        return single.numpy().view(np.uint32).copy()
    short = torch.bfloat16 if dtype == "BF16" else torch.float16
    return single.to(short).view(torch.int16).numpy().view(np.uint16).copy()


def counts(values: Values, dtype: str, row: int, first: int = 0, stride: int = 1) -> NDArray[np.int64]:
    out = np.zeros(RUN_COUNTS, dtype=np.int64)
    runs_of_few_significands(stored(values, dtype), row, first, *FIELDS[dtype], stride, out)
    return out


def fp8(rng: np.random.Generator, n: int, name: str, block: int = 128) -> Values:
    """Normal values on a grid of fp8, each block with a scale of its own."""
    kind = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[name]
    grid = torch.from_numpy((rng.standard_normal(n) * 100).astype(np.float32)).to(kind).to(torch.float64).numpy()
    scales = np.exp(rng.uniform(-3, 1, -(-n // block)))
    scaled: Values = grid * np.repeat(scales, block)[:n]
    return scaled


def fp4(rng: np.random.Generator, n: int, block: int, powers_of_two: bool) -> Values:
    """Normal values on the grid of E2M1, each block with a scale of its own."""
    values = rng.standard_normal((n // block, block))
    scale = np.abs(values).max(axis=1, keepdims=True) / 6
    scale = np.exp2(np.ceil(np.log2(scale))) if powers_of_two else np.exp(np.rint(np.log(scale) * 8) / 8)
    magnitude = E2M1[np.abs(np.abs(values / scale)[..., None] - E2M1).argmin(axis=-1)]
    return np.asarray((np.sign(values) * magnitude * scale).reshape(-1))


def kinds(rng: np.random.Generator, n: int, row: int) -> list[Values]:
    return [
        rng.standard_normal(n) * 0.02,
        fp8(rng, n, "e4m3"),
        fp8(rng, n, "e4m3") * 2.0**-12,  # subnormal in fp16, in part
        fp8(rng, n, "e5m2", row),
        fp8(rng, n, "e5m2") * 2.0**-14,
        fp4(rng, n, 32, powers_of_two=True),
        fp4(rng, n, 16, powers_of_two=False),
        np.where(rng.random(n) < 0.05, 2.0**-20, fp4(rng, n, 16, powers_of_two=False)),
        rng.integers(-8, 9, n) * 0.0123,
        rng.integers(-8, 8, n) * np.repeat(np.exp2(rng.integers(-12, -4, n // 16)), 16),
        rng.integers(-3, 4, n) * np.repeat(np.exp2(rng.integers(-12, -4, n // 32 + 1)), 32)[:n],
        np.where(rng.random(n) < 0.7, 0.0, rng.standard_normal(n)),
        np.where(rng.random(n) < 0.5, np.inf, 1e-7 * rng.standard_normal(n)),
        np.where(rng.random(n) < 0.01, np.nan, fp4(rng, n, 32, powers_of_two=True)),
        1 + 1e-5 * rng.standard_normal(n),
        np.full(n, 0.3),
    ]


@pytest.mark.parametrize("dtype", FIELDS)
@pytest.mark.parametrize(("row", "first", "stride"), LAYOUTS)
def test_runs_against_one_value_after_the_other(dtype: str, row: int, first: int, stride: int) -> None:
    rng = np.random.default_rng(row)
    rows = next(rows for rows in range(-(-640 // row), 2000) if rows * row % 32 == 0)
    for values in kinds(rng, rows * row, row):
        expected = slow_runs(stored(values, dtype).tolist(), row, first, *FIELDS[dtype], stride)
        assert counts(values, dtype, row, first, stride).tolist() == expected


@pytest.mark.exhaustive
@settings(max_examples=15)
@given(st.integers(0, 2**32), st.sampled_from(sorted(FIELDS)), st.integers(32, 300), st.integers(1, 4))
def test_runs_of_rows_of_any_length(seed: int, dtype: str, row: int, stride: int) -> None:
    rng = np.random.default_rng(seed)
    for values in kinds(rng, 32 * row, row):
        expected = slow_runs(stored(values, dtype).tolist(), row, 1, *FIELDS[dtype], stride)
        assert counts(values, dtype, row, 1, stride).tolist() == expected


@pytest.mark.parametrize("dtype", FIELDS)
def test_scaled_fp8_tells_itself_and_native_values_do_not(dtype: str) -> None:
    rng = np.random.default_rng(8)
    found = counts(fp8(rng, 128 * 200, "e4m3"), dtype, 1280)
    assert found[MANY] == found[FEW_4] == found[TELLING_4] == 0 and found[TELLING_8] >= 80
    found = counts(fp8(rng, 128 * 200, "e5m2"), dtype, 1280)
    assert found[MANY] == found[FEW_8] == found[TELLING_8] == 0 and found[TELLING_4] >= 20
    for other in (rng.standard_normal(128 * 200), np.asarray(rng.integers(-127, 128, 128 * 200) * 0.01, dtype=np.float64)):
        found = counts(other, dtype, 1280)
        assert found[MANY] == found[OFF_E2M1] == found[:FIXED_BF16].sum() - found[MANY] == 200


@pytest.mark.parametrize("dtype", FIELDS)
def test_fp4_tells_itself(dtype: str) -> None:
    rng = np.random.default_rng(9)
    found = counts(fp4(rng, 128 * 200, 32, powers_of_two=True), dtype, 1280)
    assert found[OFF_E2M1] == 0 and found[ALL_E2M1] >= 150
    found = counts(fp4(rng, 128 * 200, 16, powers_of_two=False), dtype, 1280)
    assert found[OFF_E2M1] == 0 and found[ALL_E2M1] >= 800
    assert found[[TELLING_4, TELLING_8]].sum() == 0


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_integer_grids_and_near_constants_tell_nothing(dtype: str) -> None:
    rng = np.random.default_rng(10)
    n = 128 * 200
    scales = np.repeat(rng.uniform(0.001, 0.01, 200), 128)
    powers = np.repeat(np.exp2(rng.integers(-12, -4, n // 32)), 32)
    for values in (
        rng.integers(-8, 8, n) * scales,  # int4, one scale per group
        rng.integers(-8, 8, n) * powers,
        rng.integers(-15, 16, n) * powers,  # int4 with a zero point at either end
        rng.integers(-4, 4, n) * powers,
        rng.integers(-2, 2, n) * scales,
        rng.choice([-0.37, 0.0, 0.37], n),
        np.asarray(1 + 0.0002 * np.rint(rng.standard_normal(n)), dtype=np.float64),  # norms that have hardly moved from 1
    ):
        found = counts(np.asarray(values, dtype=np.float64), dtype, 1280)
        assert found[[TELLING_4, TELLING_8, ALL_E2M1]].sum() <= found[OFF_E2M1] // 200
        assert found[[TELLING_4, TELLING_8]].sum() == 0


def test_how_deep_a_block_must_reach() -> None:
    for binades, expected in ((8, FEW_8), (9, TELLING_8)):
        values = [float(Fraction(8 + (i + i // 16) % 8, 8) * Fraction(2) ** (i % 16 * binades // 16)) for i in range(128)]
        assert counts(np.array(values), "BF16", 128)[expected] == 1


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([1, 12, 2, 3], ALL_E2M1),
        ([3, 12], ON_E2M1),
        ([1, 2, 4, 8], ON_E2M1),
        ([1, 2, 3, 4], ON_E2M1),  # 3-bit integers
        ([1], ON_E2M1),
        ([1, 16], OFF_E2M1),
        ([3, 8, 1, 16], OFF_E2M1),
        ([1, 5], OFF_E2M1),
        ([3, 7], OFF_E2M1),
        ([1, 24], OFF_E2M1),
        ([0.0625, 2, 3, 4, 6, 8, 12], OFF_E2M1),  # the 4-bit floats of bitsandbytes, with their smallest
        ([2, 3, 4, 6, 8, 12], ON_E2M1),  # and without
        ([1, 12, 9], OFF_E2M1),
    ],
)
def test_which_steps_are_on_the_grid_of_e2m1(steps: list[float], expected: int) -> None:
    for t, dtype in product((1.0, 0.75, 1.3, 1.9, 0.0067), FIELDS):
        values: Values = np.resize(np.array(steps) * t, 16).repeat(8).reshape(16, 8).T.reshape(-1)
        found = counts(values, dtype, 128)
        assert found[expected] == 8 and found[[OFF_E2M1, ON_E2M1, ALL_E2M1]].sum() == 8, (t, dtype)


def test_a_grid_of_bf16_products_stored_in_fp32_is_on_the_grid() -> None:
    values = fp4(np.random.default_rng(3), 128 * 50, 16, powers_of_two=False)
    rounded: Any = torch.from_numpy(values.astype(np.float32)).to(torch.bfloat16).to(torch.float64).numpy()
    assert counts(rounded, "F32", 1280)[OFF_E2M1] == 0


def test_rows_of_few_values_and_few_rows() -> None:
    assert counts(np.zeros(0), "BF16", 128).sum() == 0
    assert counts(fp8(np.random.default_rng(0), 310, "e4m3"), "F32", 31).sum() == 0
    assert counts(np.full(32, 0.3), "F32", 32)[DULL] == 1
