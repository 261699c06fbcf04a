"""Formats against torch's casts over every pattern, numpy's spacing, and exact rational arithmetic."""

import numpy as np
import pytest
import torch

from analyzers.numerics.formats import (
    BF16,
    FNUZ,
    FP8_E4M3,
    FP8_E5M2,
    FP16,
    FP16_GRID_BELOW,
    FP16_OVERFLOW,
    FP16_UNDERFLOW,
    FP32,
    TF32,
)
from tests.numerics.values import TORCH, all_patterns, decoded, hostile32, survives

NARROW = {"F16": FP16, "BF16": BF16, "F8_E4M3": FP8_E4M3, "F8_E5M2": FP8_E5M2} | FNUZ
ASKED = {f.name: f for f in (FP32, TF32, FP16, BF16, FP8_E4M3, FP8_E5M2)}


@pytest.mark.parametrize("dtype", NARROW)
def test_every_pattern_decodes_as_torch_reads_it(dtype: str) -> None:
    values = NARROW[dtype].decode()
    expected = decoded(all_patterns(dtype), dtype)
    np.testing.assert_array_equal(values, expected)
    finite = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(values[finite]), np.signbit(expected[finite]))


@pytest.mark.parametrize("dtype", NARROW)
def test_limits_are_those_of_torch(dtype: str) -> None:
    limits, info = NARROW[dtype], torch.finfo(TORCH[dtype])
    values = decoded(all_patterns(dtype), dtype)
    positive = values[np.isfinite(values) & (values > 0)]
    assert limits.largest == info.max == positive.max()
    assert limits.smallest_normal == float(info.smallest_normal)
    assert limits.smallest_subnormal == positive.min()
    assert limits.bits == info.bits


def test_ulp_is_numpys_spacing() -> None:
    with np.errstate(invalid="ignore"):
        single = hostile32().view(np.float32)
    single = single[np.isfinite(single) & (np.abs(single) < np.finfo(np.float32).max)]  # numpy overflows beside infinity
    np.testing.assert_array_equal(FP32.ulp(single.astype(np.float64)), np.abs(np.spacing(single)).astype(np.float64))
    half = np.arange(0x7BFF, dtype=np.uint16).view(np.float16)
    np.testing.assert_array_equal(FP16.ulp(half.astype(np.float64)), np.spacing(half).astype(np.float64))
    values = BF16.decode()[:0x7F80]
    np.testing.assert_array_equal(BF16.ulp(values[:-1]), np.diff(values))


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("dtype", NARROW)
def test_every_pattern_is_exact_where_a_cast_keeps_it(dtype: str, name: str) -> None:
    values = decoded(all_patterns(dtype), dtype)
    np.testing.assert_array_equal(ASKED[name].is_exact(values), survives(values, name))


def test_thresholds_are_where_fp16_rounds_away() -> None:
    below, above = np.nextafter(FP16_OVERFLOW, 0), FP16_OVERFLOW
    with np.errstate(over="ignore"):
        assert np.float16(below) == 65504 and np.isinf(np.float16(above))
    assert np.float16(FP16_UNDERFLOW) == 0 and np.float16(np.nextafter(FP16_UNDERFLOW, 1)) == np.float16(2.0**-24)
    grid = np.ldexp(np.arange(1, 128, dtype=np.float64), -24)
    assert grid.max() < FP16_GRID_BELOW == 128 * 2.0**-24
    assert BF16.is_exact(grid).all()
