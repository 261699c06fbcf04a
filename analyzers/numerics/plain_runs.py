"""The loops over runs of neighbours in numpy: the same counts as `run_kernels`; `runs` says what is counted."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.runs import (
    ALL_E2M1,
    BLOCK,
    DEEP_4,
    DEEP_8,
    DULL,
    EXACT_SUBNORMAL,
    EXPONENTS_OF_A_RUN,
    FEW_4,
    FEW_8,
    MAGNITUDES_OF_A_RUN,
    MAGNITUDES_OF_A_SHORT_RUN,
    MANY,
    NORMALS_OF_A_RUN,
    OFF_E2M1,
    ON_E2M1,
    PAIR_OFF,
    PAIR_ON,
    RUN,
    SCALED,
    SIGNIFICANDS_OF_FP4,
    SIGNIFICANDS_OF_FP8,
    TELLING_4,
    TELLING_8,
    VALUES_OF_A_BLOCK,
)

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# Runs that are looked at together: as many as keep the tables of a step below a few megabytes.
_BATCH = 1024

_NOTHING = -1
_ABOVE = np.iinfo(np.int64).max


def runs_of_few_significands(
    codes: NDArray[Any], row: int, first: int, mantissa: int, exponent: int, stride: int, out: NDArray[np.int64]
) -> None:
    """See `run_kernels.runs_of_few_significands`."""
    per_row = -(-row // RUN)
    number = np.arange(first * per_row, (first + codes.size // row) * per_row)
    r, k = np.divmod(number[number % stride == 0] - first * per_row, per_row)
    starts, ends = r * row + k * RUN, np.minimum(r * row + (k + 1) * RUN, (r + 1) * row)
    long = ends - starts >= NORMALS_OF_A_RUN
    starts, ends = starts[long], ends[long]
    for at in range(0, starts.size, _BATCH):
        _count(codes, starts[at : at + _BATCH], ends[at : at + _BATCH], mantissa, exponent, out)


def _count(codes: NDArray[Any], starts: Ints, ends: Ints, mantissa: int, exponent: int, out: NDArray[np.int64]) -> None:
    """Add the runs codes[start:end]."""
    head = _magnitudes(codes[starts[:, None] + np.arange(NORMALS_OF_A_RUN)], mantissa, exponent)
    native = _many(head, mantissa, exponent)
    index = starts[~native, None] + np.arange(RUN)
    inside = index < ends[~native, None]
    runs = np.where(inside, _magnitudes(codes[np.where(inside, index, 0)], mantissa, exponent), 0)
    for end in range(64, RUN + 1, 32):
        found = _many(runs[:, :end], mantissa, exponent)
        out[[MANY, OFF_E2M1]] += found.sum()
        runs = runs[~found]
    out[[MANY, OFF_E2M1]] += native.sum()
    runs = runs[_normal(runs, mantissa, exponent).sum(axis=1) >= NORMALS_OF_A_RUN]
    np.add.at(out, _kinds(runs, mantissa, exponent), 1)

    blocks = runs.reshape(-1, BLOCK)
    fit, scaled = _fit_e2m1(blocks, mantissa, exponent)
    np.add.at(out, fit[fit != _NOTHING], 1)
    out[SCALED] += scaled.sum()
    fits = ((fit == ON_E2M1) | (fit == ALL_E2M1)).reshape(-1, RUN // BLOCK)
    pairs, _ = _fit_e2m1(runs.reshape(-1, 2 * BLOCK)[(fits[:, ::2] & fits[:, 1::2]).reshape(-1)], mantissa, exponent)
    np.add.at(out, np.where(pairs == OFF_E2M1, PAIR_OFF, PAIR_ON), 1)


def _magnitudes(codes: NDArray[Any], mantissa: int, exponent: int) -> Ints:
    return np.asarray(codes & np.array((1 << (mantissa + exponent)) - 1, dtype=codes.dtype), dtype=np.int64)


def _normal(magnitudes: Ints, mantissa: int, exponent: int) -> Bools:
    stored = magnitudes >> mantissa
    return np.asarray((stored > 0) & (stored < (1 << exponent) - 1))


def _seen(keys: Ints, chosen: Bools, size: int) -> Bools:
    """(rows, size) which of the ``keys`` (rows, n), all below ``size``, each row has among the ``chosen``."""
    table = np.zeros((keys.shape[0], size), dtype=np.bool_)
    rows, columns = np.nonzero(chosen)
    table[rows, keys[rows, columns]] = True
    return table


def _many(runs: Ints, mantissa: int, exponent: int) -> Bools:
    normal = _normal(runs, mantissa, exponent)
    significands = _seen(runs >> (mantissa - 7) & 127, normal, 128).sum(axis=1)
    return np.asarray((normal.sum(axis=1) >= NORMALS_OF_A_RUN) & (significands > SIGNIFICANDS_OF_FP4))


def _kinds(runs: Ints, mantissa: int, exponent: int) -> Ints:
    """(runs,) what each is: one of the first six counts of `runs`."""
    normal = _normal(runs, mantissa, exponent)
    fraction, stored = runs & ((1 << mantissa) - 1), runs >> mantissa
    bits = fraction >> (mantissa - 7)
    # Exponents count modulo 16, for the compiled loops have a bit for each.
    different = _seen(bits << 4 | stored & 15, normal, 128 * 16).reshape(-1, 128, 16)
    fractions = different.any(axis=2).sum(axis=1)
    first = np.zeros((runs.shape[0], 129), dtype=np.int64)  # one place more, for what is not normal
    np.put_along_axis(first, np.where(normal, bits, 128), fraction, axis=1)
    alike = (normal & (np.take_along_axis(first, bits, axis=1) != fraction)).any(axis=1)
    need = np.where(normal.sum(axis=1) == RUN, MAGNITUDES_OF_A_RUN, MAGNITUDES_OF_A_SHORT_RUN)
    dull = (fractions < 3) | (different.sum(axis=(1, 2)) < need) | (different.any(axis=1).sum(axis=1) < EXPONENTS_OF_A_RUN)

    shape = (runs.shape[0], RUN // BLOCK, BLOCK)
    in_use = normal.reshape(shape)
    asked = in_use.sum(axis=2) >= VALUES_OF_A_BLOCK
    own = _seen(bits.reshape(-1, BLOCK), normal.reshape(-1, BLOCK), 128).sum(axis=1).reshape(asked.shape)
    none_poor = asked.any(axis=1) & ~(asked & (own < 3)).any(axis=1)
    rich = (asked & (own > 4)).any(axis=1)
    subnormal = (stored == 0) & (runs >= EXACT_SUBNORMAL)
    exponents = np.where(subnormal, np.frexp(runs)[1] - mantissa, stored).reshape(shape)
    most = np.where(in_use, exponents, -1).max(axis=2)
    depth = (most - np.where(in_use, exponents, 4096).min(axis=2)).max(axis=1)
    to_subnormal = np.where(most < 0, -1, most - np.where(in_use | subnormal.reshape(shape), exponents, 4096).min(axis=2)).max(axis=1)
    four = np.where(none_poor & (to_subnormal >= DEEP_4), TELLING_4, FEW_4)
    eight = np.where(none_poor & rich & (depth >= DEEP_8), TELLING_8, FEW_8)
    few = np.where(fractions <= 4, four, eight)
    return np.where((fractions > SIGNIFICANDS_OF_FP8) | alike, MANY, np.where(dull, DULL, few))


def _fit_e2m1(values: Ints, mantissa: int, exponent: int) -> tuple[Ints, Bools]:
    """(rows,) how each row of magnitudes fits, and whether it does with a t that is no power of two; see `run_kernels`."""
    one = 1 << mantissa
    normal = _normal(values, mantissa, exponent)
    fraction, stored = values & (one - 1), values >> mantissa
    low = np.where(normal, fraction, _ABOVE).min(axis=1)
    high = np.where(normal, fraction, -1).max(axis=1)
    is_low, is_high = normal & (fraction == low[:, None]), normal & (fraction == high[:, None])
    more = (normal & ~is_low & ~is_high).any(axis=1)
    nothing = ~normal.any(axis=1) | ((values != 0) & ~normal).any(axis=1)
    low, high = np.where(nothing, 0, low), np.where(nothing, 0, high)

    least_low, most_low = _range(stored, is_low)
    least_high, most_high = _range(stored, is_high)
    upward = _near(2 * (one + high), 3 * (one + low))
    least_two, most_two = np.where(upward, least_low, least_high), np.where(upward, most_low, most_high)
    least_three, most_three = np.where(upward, least_high, least_low - 1), np.where(upward, most_high, most_low - 1)
    two_fit = (upward | _near(3 * (one + high), 4 * (one + low))) & (
        np.maximum(most_two, most_three) - 3 <= np.minimum(least_two, least_three - 1)
    )
    single = low == high
    fits = ~more & np.where(single, most_low - least_low <= 3, two_fit)
    whole = ~single & (most_three - least_two == 3)
    fit = np.where(more, OFF_E2M1, np.where(nothing, _NOTHING, np.where(~fits, OFF_E2M1, np.where(whole, ALL_E2M1, ON_E2M1))))
    simple = np.isin(low, (0, one >> 1)) & np.isin(high, (0, one >> 1))
    return fit, fits & ~nothing & ~simple


def _range(stored: Ints, chosen: Bools) -> tuple[Ints, Ints]:
    """(rows,) least and greatest of the ``chosen``; without any (4096, -1)."""
    return np.where(chosen, stored, 4096).min(axis=1), np.where(chosen, stored, -1).max(axis=1)


def _near(one: Ints, other: Ints) -> Bools:
    return np.asarray(np.abs(one - other) <= (other >> 7) + (other >> 9))
