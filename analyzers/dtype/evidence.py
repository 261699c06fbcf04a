"""Tests on stored bits: each test, its probability by chance, and the meaning of its outcome.

A value that every format holds (zero, a power of two) proves nothing and is left out of all tests. One exception refutes that all values
passed through a format. If there is none, the proof is as good as the odds that all *different* values pass by accident. The null
hypothesis knows the values' own grid, the coarsest one that holds them all: on integers a number below 256 is exact in bf16 regardless of
its history, and one between 2^(7+b) and 2^(8+b) is exact with probability 2^-b.

fp16 has a second null hypothesis. Values of at most 11 significant bits need not be fp16: tf32 and means of a few bf16 values have as many,
and small values of sums are on coarse fixed grids by themselves. Only fp16 has both, 11 bits down to 2^-14 and multiples of 2^-24 below,
so its proof has to beat each: on the values above as if they were fixed point, on those below as if they were floats.
"""

from dataclasses import dataclass
from functools import cache
from math import log2, log10

import numpy as np
from numpy.typing import NDArray

from analyzers.dtype.rows import Evidence, Result
from analyzers.numerics import BF16, FP16, BinGroups, BitHistogram, bins
from analyzers.numerics.bins import bin_count

# A proof needs odds below 10^-9, so that none of a million tensors passes by accident, and 8 different values; fp16, of whose shape several
# binades must tell, needs 100. The ancestor's last mantissa bit must be in use in 2 binades, and in a third of the values: half of the
# ancestor's values use it, but at most a quarter of 8-bit integers, whatever the scales of their rows.
PROOF_LOG10 = -9.0
PROOF_DISTINCT = 8
PROOF_DISTINCT_OF_FP16 = 100
PROOF_BINADES = 2
PROOF_LAST_BIT = 1 / 3

# Exponent of the step of fp16's subnormals
FP16_GRID = -24

# Rounding to bf16 keeps 8 of the 11 bits of fp16, and its ties to even make 9 of 16 values even, whatever their size. Of fixed point with a
# step of 2^-24, which sums in fp32 and torch's uniform numbers leave, nearly half are even from 2^-10 on. Of sums of bf16 values more are
# even, up to nearly all of those that cancellation leaves near 2^-14. So below and above 2^-10 the surplus of even values must be fp16's,
# 1 in 8, to within a third of it or 6 standard deviations; above 2^-10 it must also be 6 standard deviations from 0.
_EVEN_FROM = (-14, -10)
_EVEN_SURPLUS = 1 / 8
_EVEN_DEVIATIONS = 6


@dataclass(frozen=True, slots=True)
class Test:
    """One test on the values of a dtype.

    domain: the mask of `Bins` that the test applies to; exact: key of Bins.exact that a value must satisfy; chance: share of floats without
    such an ancestor that pass.
    """

    name: str
    format: str
    domain: str
    exact: str
    chance: float


_BF16_IN_FP32 = Test("bf16_exact", "bf16", "finite_nonzero", "bf16", 2.0**-16)
_FP16_IN_FP32 = Test("fp16_exact", "fp16", "finite_nonzero", "fp16", 2.0**-13)
# Asked of values that are all bf16
FP16_IN_BF16 = Test("fp16_grid", "fp16", "low_magnitude", "fp16_grid", 1 / 3)

# The share expected by chance is that of values spread evenly within each power of two, as weights near zero are.
TESTS: dict[str, tuple[Test, ...]] = {
    "F32": (_BF16_IN_FP32, _FP16_IN_FP32, FP16_IN_BF16),
    "F16": (Test("bf16_exact", "bf16", "normal", "bf16", 0.125),),
    "BF16": (FP16_IN_BF16,),
}


def count_tested(values: BitHistogram) -> dict[str, tuple[int, int]]:
    """Count, by test, the ``values`` that it applies to and those of them that fail it."""
    tests = TESTS.get(values.dtype, ())
    counts = values.count_each(_counted(values.dtype)) if tests else []
    return {test.name: pair for test, pair in zip(tests, zip(counts[::2], counts[1::2], strict=True), strict=True)}


@cache
def _counted(dtype: str) -> BinGroups:
    masks = [_masks(test, dtype) for test in TESTS[dtype]]
    return BinGroups.of([mask for each in masks for mask in (each.tested, each.exceptions)])


def evidence(test: Test, values: BitHistogram, counts: tuple[int, int], scaled_grid: bool = False, integers: bool = False) -> Evidence:
    """Apply ``test`` to the ``values`` of one dtype, whose two counts are from `count_tested`.

    scaled_grid: the values are known to be fp8 or fp4 times scales. Values with the same significand then pass or fail together, so only
    different significands count as different values. integers: most are integers with a power of two for each group, of no more bits than
    the format keeps: they pass whatever their history.
    """
    tested, exceptions = counts
    bits = _bits(test, values, scaled_grid)
    distinct, odds = int(np.count_nonzero(bits.any(axis=0))), -float(bits.sum(axis=1).min()) * log10(2)
    result: Result = "open"
    if exceptions:
        share = (tested - exceptions) / tested
        far_above = _is_far_above(share, test.chance) and _is_far_above(share, _chance_on_grid(test, values))
        result = "partly" if far_above else "refuted"
    elif not integers and distinct >= PROOF_DISTINCT and odds <= PROOF_LOG10 and _floating(test, values, scaled_grid):
        result = "proven"
    return Evidence(
        test=test.name,
        format=test.format,
        stored=values.dtype,
        tested=tested,
        distinct=distinct,
        exceptions=exceptions,
        log10_chance=max(odds, -1e9),
        result=result,
    )


def _bits(test: Test, values: BitHistogram, scaled_grid: bool) -> NDArray[np.float64]:
    """Compute -log2 of the probability that each different value passes by accident: (nulls, values), a row for each null hypothesis.

    The first is the coarsest grid that holds all values that pass. The second, for fp16 in wider formats, is floats of as many bits: below
    2^-14 at least half of them need a finer step than fp16 has. Values of both signs pass together, as do on a scaled grid those of one
    significand (10 bits of it in fp16, else 7 and the plane).
    """
    index = values.index[_masks(test, values.dtype).informative[values.index]]
    if index.size == 0:
        return np.zeros((1, 0))
    if test is FP16_IN_BF16:
        nulls = [np.full(index.size, float(_rounded_from_fp16(values)))]
    elif test.format == "fp16":
        nulls = [_bits_on_grid(test, values.dtype, index), _subnormal(values.dtype)[index].astype(np.float64)]
    else:
        nulls = [_bits_on_grid(test, values.dtype, index)]
    keep = (0x3FF if values.dtype == "F16" else ~0xFF80) if scaled_grid else ~0x8000
    _, group = np.unique(index & keep, return_inverse=True)
    largest = np.zeros((len(nulls), int(group.max()) + 1))
    for row, bits in zip(largest, nulls, strict=True):
        np.maximum.at(row, group, bits)
    return largest


def _bits_on_grid(test: Test, dtype: str, index: NDArray[np.int64]) -> NDArray[np.float64]:
    """Count the bits that each bin of ``index`` would have beyond the mantissa of the test's format if its values used the grid of all."""
    beyond = bins(dtype).exponent[index] - _lowest_bits(dtype)[index].min() - _MANTISSA_BITS[test.format]
    return np.asarray(np.clip(beyond, 0, -log2(test.chance)), dtype=np.float64)


def _chance_on_grid(test: Test, values: BitHistogram) -> float:
    """Compute the share of the tested values that pass by accident, given the coarsest grid that holds all of them."""
    if test.name == "fp16_grid":
        return test.chance
    tested = _masks(test, values.dtype).tested[values.index]
    counts = values.counts[tested]
    return float(counts @ np.exp2(-_bits_on_grid(test, values.dtype, values.index[tested])) / counts.sum())


def _is_far_above(share: float, chance: float) -> bool:
    return share >= max(2 * chance, chance + 0.01)


_MANTISSA_BITS = {format_.name: format_.mantissa_bits for format_ in (BF16, FP16)}


@cache
def _lowest_bits(dtype: str) -> NDArray[np.int16]:
    """Return the exponent of the lowest bit in use in each bin; if a bin does not tell it (plane 0 of wide dtypes) the highest possible."""
    table = bins(dtype)
    whole = (np.abs(np.frexp(np.where(table.finite_nonzero, table.value, 1.0))[0]) * 2.0**53).astype(np.int64)
    lowest = table.exponent - 53 + np.frexp((whole & -whole).astype(np.float64))[1]
    unknown = (np.arange(lowest.size) >> 16 == 0) & (dtype == "F32")
    return np.where(unknown, table.exponent - 11, lowest).astype(np.int16)


def _rounded_from_fp16(values: BitHistogram) -> bool:
    """Return whether as many of the bf16 ``values`` are even as rounding fp16 leaves, at all magnitudes. See `_EVEN_FROM`."""
    even_near, odd_near, even, odd = values.count_each(_by_last_bit(values.dtype))
    for surplus, number in ((even_near - odd_near, even_near + odd_near), (even - odd, even + odd)):
        if abs(surplus - _EVEN_SURPLUS * number) > max(_EVEN_SURPLUS / 3 * number, _EVEN_DEVIATIONS * number**0.5):
            return False
    return bool(even - odd > _EVEN_DEVIATIONS * (even + odd) ** 0.5)


@cache
def _by_last_bit(dtype: str) -> BinGroups:
    """Group the bins of bf16 values, except powers of two, by magnitude and last bit: even and odd below 2^-10, even and odd above."""
    table, odd = bins(dtype), np.arange(bin_count(dtype)) & 1 == 1
    several_bits = table.finite_nonzero & ~table.one_bit
    near, far = (several_bits & (table.exponent >= least) for least in _EVEN_FROM)
    return BinGroups.of([near & ~far & ~odd, near & ~far & odd, far & ~odd, far & odd])


def _floating(test: Test, values: BitHistogram, scaled_grid: bool) -> bool:
    """Return whether values that pass ``test`` are spread like those of a float format, unlike integers or fixed point."""
    masks = _masks(test, values.dtype)
    if any(values.binades(last_bit) < PROOF_BINADES for last_bit in masks.last_bits):
        return False
    if test.format == "fp16" and values.distinct(masks.lattice) < PROOF_DISTINCT_OF_FP16:
        return False
    return scaled_grid or values.count(masks.last_bits[0]) >= PROOF_LAST_BIT * values.count(masks.lattice)


@dataclass(frozen=True, slots=True)
class _Masks:
    """Bins that a test applies to, bins that fail it, and bins whose passing is informative.

    lattice: bins of several bits that are normal in the test's format; last_bits: those of them that need the last mantissa bit, and for
    fp16 the informative odd multiples of its smallest step.
    """

    tested: NDArray[np.bool_]
    exceptions: NDArray[np.bool_]
    informative: NDArray[np.bool_]
    lattice: NDArray[np.bool_]
    last_bits: tuple[NDArray[np.bool_], ...]


@cache  # a checkpoint may have 90,000 tensors, and an fp32 histogram has 330,000 bins
def _masks(test: Test, dtype: str) -> _Masks:
    table = bins(dtype)
    domain: NDArray[np.bool_] = getattr(table, test.domain)
    passing = domain & table.exact[test.exact]
    tested, exceptions, informative = domain & ~(passing & table.one_bit), domain & ~passing, passing & ~table.one_bit
    if test is FP16_IN_BF16:
        tested, exceptions = tested | table.beyond_fp16, exceptions | table.beyond_fp16
    if test.format != "fp16":
        return _Masks(tested, exceptions, informative, informative, (informative & _last_bit(test, dtype),))
    lattice = table.exact["fp16"] & ~table.one_bit & ~_subnormal(dtype)
    odd_steps = informative & _subnormal(dtype) & (_lowest_bits(dtype) == FP16_GRID)
    return _Masks(tested, exceptions, informative, lattice, (lattice & _last_bit(test, dtype), odd_steps))


def _subnormal(dtype: str) -> NDArray[np.bool_]:
    """Return the bins of values that are subnormal in fp16."""
    table = bins(dtype)
    return np.asarray(table.finite_nonzero & (np.abs(table.value) < FP16.smallest_normal))


def _last_bit(test: Test, dtype: str) -> NDArray[np.bool_]:
    """Return the bins of values that need every mantissa bit of the ancestor, or of bf16 if they are bf16, and are normal in it."""
    index = np.arange(bin_count(dtype))
    if dtype == "F16":
        return np.asarray(index & 0xF == 8)
    if dtype == "BF16":
        return np.asarray(index & 1 == 1)
    plane, high_half = index >> 16, index & 0xFFFF
    if test.format == "bf16" or test is FP16_IN_BF16:
        return np.asarray((plane == 4) & (high_half & 1 == 1))
    return np.asarray(plane == 1)
