"""Tests whether sampled values equal the combination, rounded to the model's dtype, or a monotone function of one candidate."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analyzers.parents.count import SHORT_RUN
from analyzers.parents.feasible_weights import arithmetic_error, closest
from analyzers.parents.rounding import Floats, rounded, rounds

# Weights are tried at multiples of GRID, and where the values confine them.
GRID, _DECIMALS = 0.01, 2
_TRIED_ON = 1 << 14  # values


def equal(values: Floats, parents: Floats, weights: Floats, dtype: str, stored: bool = False) -> NDArray[np.bool_]:
    """Return (n,) which ``values`` equal sum of a_i P_i, computed in fp32 and rounded to ``dtype``. parents: (k, n).

    The order of the sum and the rounding of the weights are unknown, so every result that fp32 arithmetic may give counts: within (k + 1)
    2^-24 sum |a_i P_i| of the sum. This matters for ties, which are frequent between narrow formats. stored: each product is rounded to
    ``dtype`` first, as arithmetic in a narrow format does.
    """
    parts = weights[:, None] * parents
    parts = rounded(parts, dtype) if stored else parts
    total, margin = parts.sum(axis=0), arithmetic_error(parts)
    if len(weights) == 1 and weights[0] == 1:
        margin = np.zeros_like(total)
    found: NDArray[np.bool_] = (rounded(total - margin, dtype) <= values) & (values <= rounded(total + margin, dtype))
    return found


def exact_weights(some: Floats, start: Floats, dtype: str) -> tuple[Floats, bool]:
    """Find the weights near ``start``, and the arithmetic (`equal`), for which most of ``some[0]`` equals the combination of ``some[1:]``.

    Tries the weights closest to all slabs (`feasible_weights.closest`), and the nearest multiples of ``GRID``, which win ties: between
    siblings, many weights may give the same values.
    """
    some = some[:, :: max(1, some.shape[1] // _TRIED_ON)]
    tried = []
    for stored in (False, True) if len(start) > 1 and dtype in ("BF16", "F16") else (False,):
        found = closest(some[0], some[1:], start, dtype, stored)
        tried += [(np.round(found, _DECIMALS), stored), (found, stored)]
        if stored:  # some programs round the weights too
            tried.append((rounded(tried[-2][0], dtype), True))
        tried.append((np.round(start, _DECIMALS), stored))  # a few values that became tiny, with tiny slabs, can lead the others astray
    shares = [equal(some[0], some[1:], weights, dtype, stored).mean() for weights, stored in tried]
    return tried[int(np.argmax(shares))]


def by_chance(x: Floats, y: Floats) -> float:
    """Return the share of equal values expected between unrelated ``x`` and ``y``: the sum of p_k q_k over values."""
    (a, n), (b, m) = (np.unique(each, return_counts=True) for each in (x, y))
    _, i, j = np.intersect1d(a, b, assume_unique=True, return_indices=True)
    return float(n[i].astype(np.float64) @ m[j].astype(np.float64)) / max(1, x.size * y.size)


@dataclass(frozen=True, slots=True)
class Monotone:
    """Shares of pairs of neighbours in the order of P, within short runs.

    inverted: X decreases where P increases; merged: X is equal where P is not.
    """

    inverted: float
    merged: float


# Shares of neighbouring pairs: the most that a step function may invert, and the least that it merges.
_INVERTED, _MERGED = 0.005, 0.02


def is_step_function(found: Monotone) -> bool:
    """Return whether X is a step function of P, like a quantized copy."""
    return found.inverted <= _INVERTED and found.merged >= _MERGED


def monotone(kept: Floats, dtype: str) -> Monotone | None:
    """Test whether X is a step function of P, cast to ``dtype``, within runs of 32 values, as a quantized copy is within a scaled block.

    None without a run.
    """
    x, p = (kept[:2, : kept.shape[1] // SHORT_RUN * SHORT_RUN].astype(np.float64)).reshape(2, -1, SHORT_RUN)
    p = rounded(p, dtype) if rounds(dtype) else p
    if not x.size:
        return None
    sequence = np.argsort(p, axis=1, kind="stable")
    x, p = np.take_along_axis(x, sequence, 1), np.take_along_axis(p, sequence, 1)
    rising, step = np.diff(p, axis=1) > 0, np.diff(x, axis=1)
    pairs = max(1, int(rising.sum()))
    return Monotone(float((rising & (step < 0)).sum()) / pairs, float((rising & (step == 0)).sum()) / pairs)
