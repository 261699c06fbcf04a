"""The loops that count patterns and rows, against Python that looks at one element at a time."""

from math import fsum

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from analyzers.numerics.count_kernels import NO_MAGNITUDE, count_fp32
from analyzers.numerics.row_kernels import exact_rows16, exact_rows32
from tests.numerics.values import hostile32

Codes = NDArray[np.uint32]


def plane(code: int) -> int:
    """0 for fewer than 13 low zero bits, then 1 to 3 for exactly 13 to 15, 4 for 16 or more."""
    zeros = (code & -code).bit_length() - 1 if code else 32
    return min(max(zeros - 12, 0), 4)


def check32(codes: Codes) -> None:
    """Count fp32 patterns, and compare all that is returned."""
    table = np.zeros(5 << 16, dtype=np.int64)
    low, high, squares, near_overflow = count_fp32(codes, table)
    expected = np.zeros(5 << 16, dtype=np.int64)
    for code in codes.tolist():
        expected[plane(code) << 16 | code >> 16] += 1
    np.testing.assert_array_equal(table, expected)
    magnitudes = [code & 0x7FFFFFFF for code in codes.tolist() if code & 0x7FFFFFFF < 0x7F800000 and code & 0xFFFF]  # not bf16 values
    assert (low, high) == (min((m for m in magnitudes if m), default=NO_MAGNITUDE), max(magnitudes, default=0))
    values = np.array(magnitudes, dtype=np.uint32).view(np.float32).astype(np.float64)
    assert squares == pytest.approx(fsum((values * values).tolist()), rel=1e-13)
    assert near_overflow == int(((values >= 65520) & (values < 65536)).sum())


@pytest.mark.parametrize("kept", [0xFFFFFFFF, 0xFFFF0000, 0xFFFFE000])
@pytest.mark.parametrize("tail", [0, 1, 63])
def test_fp32_blocks_of_one_kind(kept: int, tail: int) -> None:
    rng = np.random.default_rng(tail)
    codes = rng.integers(0, 1 << 32, 20 * 64 + tail, dtype=np.uint32) & np.uint32(kept)
    codes[640:704:3] &= np.uint32(0xFFFFC000)
    codes[rng.integers(0, codes.size, 9)] = 0
    check32(codes)


def test_fp32_hostile_values() -> None:
    codes = hostile32()
    check32(codes)


@given(st.lists(st.integers(0, 2**32 - 1) | st.sampled_from([0, 1 << 31, 0x7F800000, 0xFFFFFFFF, 0x80000001]), max_size=140))
def test_fp32_any_patterns(values: list[int]) -> None:
    codes = np.array(values, dtype=np.uint32)
    check32(codes)


# --- rows exact in a narrower format ------------------------------------------------------------------------------


def informative(codes: list[int], mantissa: int, exponent: int) -> int:
    """Different normal magnitudes that are no powers of two."""
    top = (1 << exponent) - 1
    magnitudes = {c & ((1 << (mantissa + exponent)) - 1) for c in codes}
    return sum(1 for m in magnitudes if 0 < m >> mantissa < top and m & ((1 << mantissa) - 1))


def binades(codes: list[int], last: int) -> int:
    """In how many binades of fp32 patterns the bit ``last`` is in use."""
    return len({c >> 23 & 0xFF for c in codes if c & last and 0 < c >> 23 & 0xFF < 255})


def exact_in(x: float, name: str) -> bool:
    if name == "bf16":
        return bool(torch.tensor(x, dtype=torch.float32).to(torch.bfloat16).item() == x)
    with np.errstate(over="ignore"):
        return bool(np.float16(x) == np.float32(x))


def rows32(rng: np.random.Generator, row: int) -> Codes:
    """Rows of every kind: native, bf16, fp16, fp16 subnormals, beyond fp16's range, constant, specials, one exception."""
    normal = rng.standard_normal((12, row)).astype(np.float32) * np.float32(0.02)
    fp16 = normal.astype(np.float16).astype(np.float32)
    bf16 = (normal.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    tiny = np.rint(normal * 50000) * np.float32(2.0**-24)
    rows = [normal[0], bf16[1], fp16[2], tiny[3], bf16[4] * np.float32(2.0**24), np.full(row, 0.3), np.zeros(row), fp16[7].copy()]
    rows[-1][row // 2] = np.float32(0.1)
    special = bf16[8].copy()
    special[::7], special[1::7], special[2::7] = np.inf, np.nan, -np.inf
    powers = np.exp2(rng.integers(-10, 10, row)).astype(np.float32)
    late = bf16[9].copy()
    late[-1] = np.float32(1.1)
    half = tiny[10] + np.float32(2.0**-25)
    return np.concatenate([*rows, special, powers, late, half]).astype(np.float32).view(np.uint32)


@pytest.mark.parametrize("row", [32, 64, 100, 128, 129, 300])
def test_exact_rows32_against_casts(row: int) -> None:
    codes = rows32(np.random.default_rng(row), row)
    expected = [0, 0]
    for start in range(0, codes.size, row):
        part = codes[start : start + row]
        values = [x for x in part.view(np.float32).tolist() if np.isfinite(x)]
        if informative(part.tolist(), 23, 8) >= 8:
            bf16, fp16 = (all(exact_in(x, name) for x in values) for name in ("bf16", "fp16"))
            expected[0] += bf16 and binades(part.tolist(), 0x10000) >= 4
            beyond_bf16 = [code for code in part.tolist() if code & 0xFFFF]
            expected[1] += fp16 and not bf16 and informative(beyond_bf16, 23, 8) >= 8 and binades(beyond_bf16, 0x2000) >= 4
    assert min(expected) >= 1
    assert exact_rows32(codes, row, 8) == tuple(expected)
    assert exact_rows32(codes[:row], row, 8) == (0, 0)
    assert exact_rows32(codes & np.uint32(0xFFFF0000), row, 8) > (expected[0], 0)


@pytest.mark.parametrize(("name", "steps"), [("bf16", 128), ("fp16", 1024)])
@given(code=st.integers(0, 2**32 - 1) | st.sampled_from(hostile32().tolist()))
def test_one_value_spoils_a_row_iff_a_cast_changes_it(name: str, steps: int, code: int) -> None:
    i = np.arange(64)
    row = ((1 + (2 * i + 1) / steps) * 2.0 ** (i % 8 - 4)).astype(np.float32).view(np.uint32).copy()
    row[17] = code
    value = float(row.view(np.float32)[17])
    keeps = int(not np.isfinite(value) or exact_in(value, name))
    assert exact_rows32(row, 64, 8) == ((keeps, 0) if name == "bf16" else (0, keeps))  # one value beyond bf16 is no row of fp16 values


@pytest.mark.parametrize("row", [32, 64, 100, 129])
def test_exact_rows16_against_casts(row: int) -> None:
    rng = np.random.default_rng(row)
    normal = (rng.standard_normal((6, row)) * 0.02).astype(np.float32)
    bf16 = (normal.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float16)
    spoiled = bf16[0].copy()
    spoiled[-1] = np.float16(1.001)
    special = bf16[1].copy()
    special[0], special[1] = np.inf, np.nan
    rows = [normal[0].astype(np.float16), bf16[2], bf16[3], spoiled, special, np.full(row, 0.3125, np.float16), np.zeros(row, np.float16)]
    codes = np.concatenate(rows).view(np.uint16)
    assert exact_rows16(codes, row, 10) == 3
    assert exact_rows16(np.concatenate(rows[:1]).view(np.uint16), row, 10) == 0


def test_a_row_of_few_magnitudes_proves_nothing_whatever_the_signs() -> None:
    five = np.array([1.25, 1.5, 1.75, 2.5, 3.5, -1.25, -1.5, -1.75, -2.5, -3.5] * 20, dtype=np.float32)
    assert exact_rows32(five.view(np.uint32), 200, 8) == (0, 0)
    assert exact_rows16(five.astype(np.float16).view(np.uint16), 200, 10) == 0


def test_rows_of_an_integer_grid_are_no_rows_of_a_float_format() -> None:
    """Dequantized int8 with a scale of one bit is exact in bf16, and never was it: its last bit shows in one binade alone."""
    grid = (np.random.default_rng(0).integers(-127, 128, (4, 256)) * 2.0**-9).astype(np.float32)
    assert exact_rows32(grid.reshape(-1).view(np.uint32), 256, 8) == (0, 0)
    assert exact_rows16(grid.reshape(-1).astype(np.float16).view(np.uint16), 256, 10) == 0
