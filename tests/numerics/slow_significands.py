"""Counts as documented in `analyzers.numerics.few_significands`, run by run and value by value."""

from fractions import Fraction
from math import gcd

from analyzers.numerics.few_significands import (
    ALL_E2M1,
    DULL,
    FEW_4,
    FEW_8,
    FIXED_BF16,
    FIXED_FP16,
    FIXED_FP32,
    MANY,
    OFF_E2M1,
    ON_E2M1,
    RUN_COUNTS,
    TELLING_4,
    TELLING_8,
)


def slow_runs(codes: list[int], row: int, first: int, mantissa: int, exponent: int, stride: int) -> list[int]:
    """Return the counts of every ``stride``-th run of whole rows."""
    out = [0] * RUN_COUNTS
    per_row = -(-row // 128)
    for r in range(len(codes) // row):
        for k in range(per_row):
            if ((first + r) * per_row + k) % stride == 0:
                run = codes[r * row + 128 * k : min(r * row + 128 * k + 128, (r + 1) * row)]
                _count([code & ((1 << (mantissa + exponent)) - 1) for code in run], mantissa, (1 << exponent) - 1, out)
    return out


def _count(run: list[int], mantissa: int, top: int, out: list[int]) -> None:
    def normals(values: list[int]) -> list[int]:
        return [m for m in values if 0 < m >> mantissa < top]

    if len(normals(run)) >= 32:
        wholes = [((1 << mantissa) + m % (1 << mantissa)) << (m >> mantissa) for m in normals(run)]
        step = gcd(*wholes) & -gcd(*wholes)
        for kind, bits in ((FIXED_BF16, 8), (FIXED_FP16, 11), (FIXED_FP32, 24)):
            out[kind] += max(wholes) < step << bits
    for end in (32, 64, 96, 128):
        head = normals(run[:end])
        if len(head) >= 32 and len({m >> (mantissa - 7) & 127 for m in head}) > 16:
            out[MANY] += 1
            out[OFF_E2M1] += 1
            return
    if len(normals(run)) < 32:
        return
    blocks = [run[i : i + 16] for i in range(0, len(run), 16)]
    out[_kind(normals(run), blocks, mantissa, top)] += 1
    for block in blocks:
        if (fit := _fit(block, mantissa, top)) is not None:
            out[fit] += 1


def _kind(normal: list[int], blocks: list[list[int]], mantissa: int, top: int) -> int:
    def fractions(values: list[int], bits: int) -> set[int]:
        return {(m & ((1 << mantissa) - 1)) >> (mantissa - bits) for m in values}

    if len(fractions(normal, mantissa)) > min(8, len(fractions(normal, 7))):
        return MANY
    different = {(m & ((1 << mantissa) - 1), (m >> mantissa) % 16) for m in normal}
    need = 20 if len(normal) == 128 else 12
    if len(fractions(normal, 7)) < 3 or len(different) < need or len({exponent for _, exponent in different}) < 6:
        return DULL
    if not _on_eighths([m & ((1 << mantissa) - 1) | 1 << mantissa for m in normal]):
        return DULL
    values = [[m for m in block if 0 < m >> mantissa < top] for block in blocks]
    own = [len(fractions(block, 7)) for block in values if len(block) >= 8]
    if not own or min(own) < 3:
        return FEW_4 if len(fractions(normal, 7)) <= 4 else FEW_8
    if len(fractions(normal, 7)) <= 4:
        low = [[m.bit_length() - mantissa if m >> mantissa == 0 else m >> mantissa for m in b if 8 <= m < top << mantissa] for b in blocks]
        deep = any(v and (max(v) >> mantissa) - min(e) >= 10 for v, e in zip(values, low, strict=True))
        return TELLING_4 if deep else FEW_4
    deep = any(block and (max(block) >> mantissa) - (min(block) >> mantissa) >= 8 for block in values)
    return TELLING_8 if deep and max(own) > 4 else FEW_8


def _fit(values: list[int], mantissa: int, top: int) -> int | None:
    """Find the fit of a block by trying every t that is a power of two times one of the significands."""
    one = 1 << mantissa
    normal = {m for m in values if 0 < m >> mantissa < top}
    significands = sorted({m & (one - 1) | one for m in normal})
    if len(significands) > 2:
        return OFF_E2M1
    if not normal or any(m and not 0 < m >> mantissa < top for m in values):
        return None
    low, high = significands[0], significands[-1]
    # significands relative to t in halves: 3/2 is either in the binade of t or one above
    readings: list[dict[int, int | Fraction]] = [{low: 2}]
    if low != high:
        readings = [{low: 2, high: 3}] if _near(2 * high, 3 * low) else [{high: 2, low: Fraction(3, 2)}] if _near(3 * high, 4 * low) else []
    best = OFF_E2M1
    for reading in readings:
        exact = [reading[m & (one - 1) | one] * Fraction(2) ** (m >> mantissa) for m in normal]
        for least in (1, 2, 3, 4, 6, 8, 12):
            multiples = {x / min(exact) * least for x in exact}
            if multiples <= {1, 2, 3, 4, 6, 8, 12}:
                best = ALL_E2M1 if {1, 12} <= multiples else max(best, ON_E2M1)
    return best


def _on_eighths(significands: list[int]) -> bool:
    """Return whether one scale makes all significands multiples of 1/8, trying each multiple for the first and neighbouring binades."""
    first = significands[0]
    return any(
        all(
            any(_near(up * each * eighths, down * first * other) for other in range(8, 16) for up, down in ((1, 1), (2, 1), (1, 2)))
            for each in set(significands)
        )
        for eighths in range(8, 16)
    )


def _near(one: int, other: int) -> bool:
    return abs(one - other) <= (other >> 7) + (other >> 9)
