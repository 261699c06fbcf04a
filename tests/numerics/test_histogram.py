"""Every lookup of a bit histogram against float64 and torch, on random, upcast and hostile values; merging; overflow of the table."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from analyzers.numerics import Accumulator, BitHistogram, bins
from tests.numerics.values import all_patterns, decoded, hostile32, survives

DTYPES = ("F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")
FORMATS = ("fp16", "bf16", "tf32", "fp8_e4m3", "fp8_e5m2")


def counted(codes: NDArray[Any], dtype: str, device: str = "cpu") -> BitHistogram:
    accumulator = Accumulator(dtype, device)
    accumulator.update(codes)
    return accumulator.take()


def patterns(dtype: str, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Sets of patterns of ``dtype``, by name."""
    rng = np.random.default_rng(seed)
    normal = (rng.standard_normal(9001) * 0.02).astype(np.float32)
    if dtype == "F32":
        return {
            "hostile": hostile32(),
            "native": normal.view(np.uint32),
            "from bf16": normal.view(np.uint32) & np.uint32(0xFFFF0000),
            "from fp16": normal.astype(np.float16).astype(np.float32).view(np.uint32),
            "near 65520": (65520 + rng.integers(-40, 40, 500)).astype(np.float32).view(np.uint32),
        }
    every = all_patterns(dtype)
    found = {"every": every, "random": rng.choice(every, 5000)}
    if dtype in ("F16", "BF16"):
        weights = torch.from_numpy((rng.standard_normal(9001) * 0.02).astype(np.float32))
        weights[rng.integers(0, 9001, 60)] = torch.tensor([0.0, -0.0, 1e-7, 300.0, -70000.0, float("inf"), float("nan"), 2.0**-17]).repeat(
            8
        )[:60]
        found["weights"] = weights.to(torch.bfloat16 if dtype == "BF16" else torch.float16).view(torch.int16).numpy().view(np.uint16)
    return found


def common(dtype: str) -> dict[str, NDArray[Any]]:
    code = patterns(dtype)["random" if dtype != "F32" else "hostile"].dtype
    nan = {"F32": 0x7FC00000, "F16": 0x7E00, "BF16": 0x7FC0, "F8_E4M3": 0x7F, "F8_E5M2": 0x7E}[dtype]
    return {
        "empty": np.zeros(0, dtype=code),
        "zeros": np.zeros(130, dtype=code),
        "one value": np.array([3], dtype=code),
        "nan": np.full(70, nan, dtype=code),
    }


CASES = [(dtype, name) for dtype in DTYPES for name in (*patterns(dtype), *common(dtype))]


@pytest.mark.parametrize(("dtype", "name"), CASES)
def test_every_lookup(dtype: str, name: str) -> None:
    codes = (patterns(dtype) | common(dtype))[name]
    values = decoded(codes, dtype)
    histogram, table = counted(codes, dtype), bins(dtype)
    magnitude = np.abs(values)
    finite = np.isfinite(values)
    nonzero = finite & (values != 0)
    assert histogram.values == values.size
    for key in FORMATS:
        assert histogram.count(table.exact[key]) == int((survives(values, key) & nonzero).sum()), key
    assert histogram.count(table.zero) == int((values == 0).sum())
    assert histogram.count(table.nan) == int(np.isnan(values).sum())
    assert histogram.count(table.inf) == int(np.isinf(values).sum())
    assert histogram.count(table.finite_nonzero) == int(nonzero.sum())
    # torch rounds float64 to fp16 by way of fp32; numpy does it at once.
    with np.errstate(all="ignore"):
        half = values.astype(np.float16)
    assert histogram.overflow() == int((nonzero & np.isinf(half)).sum())
    assert histogram.count(table.underflow) == int((nonzero & (half == 0)).sum())
    assert histogram.count(table.subnormal) == int((nonzero & (magnitude > 2.0**-25) & (magnitude < 2.0**-14)).sum())
    assert histogram.count(table.low_magnitude) == int((nonzero & (magnitude < 2.0**-17)).sum())
    steps = np.where(magnitude < 1, values, 0.5) * 2.0**24
    grid = nonzero & (magnitude < 2.0**-17) & (np.rint(steps) == steps)
    assert histogram.count(table.low_magnitude & table.exact["fp16_grid"]) == int(grid.sum())
    least = magnitude[nonzero].min() if nonzero.any() else None
    lowest, highest = (magnitude[finite].min(), magnitude[finite].max()) if finite.any() else (None, None)
    assert histogram.extremes() == (lowest, least, highest)
    squares = sum((Fraction(x) ** 2 for x in values[nonzero].tolist()), Fraction(0))
    assert histogram.squares == pytest.approx(float(squares), rel=1e-12, abs=0)
    # Magnitudes that fp32 does not tell apart share a bin: the spectrum is asked of the others.
    exponents: dict[int, int] = {}
    seen = nonzero & (magnitude >= 2.0**-133)
    for e in (np.frexp(magnitude[seen])[1] - 1).tolist():
        exponents[e] = exponents.get(e, 0) + 1
    found = histogram.exponents()
    assert {e: n for e, n in found.items() if e >= -133 or dtype != "F32"} == exponents
    assert sum(found.values()) == int(nonzero.sum())


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
def test_distinct_counts_magnitudes(dtype: str) -> None:
    """A value and its negative pass every test together: they are one piece of evidence."""
    values = np.array([1.25, 1.5, -1.25, -1.5, 3.0, 1.25], dtype=np.float32)
    if dtype == "F32":
        codes: NDArray[Any] = values.view(np.uint32)
    else:
        codes = torch.from_numpy(values).to(torch.bfloat16 if dtype == "BF16" else torch.float16).view(torch.int16).numpy().view(np.uint16)
    histogram = counted(codes, dtype)
    assert histogram.distinct(bins(dtype).finite_nonzero) == 3


# --- merging ------------------------------------------------------------------------------------------------------

any_dtype = st.sampled_from(DTYPES)


def drawn(dtype: str, seed: int, size: int) -> NDArray[Any]:
    pool = np.concatenate(list(patterns(dtype).values()))
    return np.random.default_rng(seed).choice(pool, size)


def close(a: BitHistogram, b: BitHistogram) -> None:
    """Equal in all that is counted; squares are sums of float64 partial sums."""
    np.testing.assert_array_equal(a.index, b.index)
    np.testing.assert_array_equal(a.counts, b.counts)
    assert (a.dtype, a.low, a.high, a.near_overflow) == (b.dtype, b.low, b.high, b.near_overflow)
    assert a.squares == pytest.approx(b.squares, rel=1e-12, abs=0)


@given(any_dtype, st.integers(0, 99), st.integers(0, 2000), st.lists(st.integers(0, 2000), max_size=5), st.booleans())
def test_any_split_merges_to_the_whole(dtype: str, seed: int, size: int, cuts: list[int], one_accumulator: bool) -> None:
    codes = drawn(dtype, seed, size)
    parts = np.split(codes, sorted(min(cut, size) for cut in cuts))
    if one_accumulator:
        accumulator = Accumulator(dtype)
        for part in parts:
            accumulator.update(part)
        merged = accumulator.take()
    else:
        merged = BitHistogram(dtype)
        for part in parts:
            merged = BitHistogram.together((merged, counted(part, dtype)))
    close(merged, counted(codes, dtype))


# --- the accumulator ----------------------------------------------------------------------------------------------
