"""Tests on the kept values: do they equal the combination, rounded to the model's dtype, or a monotone function of one candidate?"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from analyzers.parents.count import SHORT_RUN
from analyzers.parents.rounding import Floats, rounded, rounds

# Weights are tried at multiples of this, and at the estimate.
GRID = 0.01
_COMBINATIONS = 64
_TRIED_ON = 1 << 13  # values
_UNIT = 2.0**-24  # half an ulp of fp32, relative


def equal(values: Floats, parents: Floats, weights: Sequence[float], dtype: str, stored: bool = False) -> NDArray[np.bool_]:
    """(n,) which ``values`` equal sum of a_i P_i, computed in fp32 and rounded to ``dtype``. parents: (k, n).

    The order of the sum and the rounding of the weights are unknown, so anything counts that fp32 arithmetic may give: within
    (k + 1) 2^-24 sum |a_i P_i| of the sum. That decides ties, which are frequent between narrow formats. stored: each product is rounded to
    ``dtype`` first, as arithmetic in a narrow format does.
    """
    factors = np.array(weights)[:, None]
    parts = rounded(factors * parents, dtype) if stored else factors * parents
    total, margin = parts.sum(axis=0), (len(weights) + 1) * _UNIT * np.abs(parts).sum(axis=0)
    if len(weights) == 1 and weights[0] == 1:
        margin = np.zeros_like(total)
    found: NDArray[np.bool_] = (rounded(total - margin, dtype) <= values) & (values <= rounded(total + margin, dtype))
    return found


def best_weights(some: Floats, low: Floats, estimate: Floats, high: Floats, dtype: str) -> tuple[tuple[float, ...], bool]:
    """The weights in [low, high], and the arithmetic (`equal`), for which most of ``some[0]`` equals the combination of ``some[1:]``.

    Tried: the estimate, and multiples of ``GRID`` that are in the interval or next to the estimate.
    """
    some = some[:, :: max(1, some.shape[1] // _TRIED_ON)]
    axes = [_grid(*each) for each in zip(low, estimate, high, strict=True)]
    while np.prod([len(axis) for axis in axes]) > _COMBINATIONS:
        axes[max(range(len(axes)), key=lambda i: len(axes[i]))].pop()
    weights = list(product(*axes))
    combinations = [(each, False) for each in weights]
    if len(axes) > 1 and dtype in ("BF16", "F16"):  # whose arithmetic also rounds the weights, in some programs
        combinations += [(each, True) for each in (*weights, *(tuple(rounded(np.array(each), dtype)) for each in weights))]
    shares = [equal(some[0], some[1:], each, dtype, stored).mean() for each, stored in combinations]
    each, stored = combinations[int(np.argmax(shares))]
    return tuple(map(float, each)), stored


def by_chance(x: Floats, y: Floats) -> float:
    """The share of equal values to expect between ``x`` and ``y`` if they had nothing to do with each other: sum of p_k q_k over values."""
    (a, n), (b, m) = (np.unique(each, return_counts=True) for each in (x, y))
    _, i, j = np.intersect1d(a, b, assume_unique=True, return_indices=True)
    return float(n[i].astype(np.float64) @ m[j].astype(np.float64)) / max(1, x.size * y.size)


def _grid(low: float, estimate: float, high: float) -> list[float]:
    """Weights to try, those closest to the estimate first."""
    nearest = round(estimate / GRID)
    first, last = (max(nearest - 50, int(np.ceil(low / GRID))), min(nearest + 50, int(high // GRID))) if high - low < 100 else (1, 0)
    steps = sorted({nearest, *range(first, last + 1)}, key=lambda step: abs(step * GRID - estimate))
    return [step / 100 for step in steps[:1]] + [estimate] + [step / 100 for step in steps[1:]]


@dataclass(frozen=True, slots=True)
class Monotone:
    """Over pairs of neighbours in the order of P, within short runs. inverted: X decreases where P increases; merged: X is equal where P is
    not.
    """

    inverted: float
    merged: float


def monotone(kept: Floats, dtype: str) -> Monotone | None:
    """Whether X is a step function of P, cast to ``dtype``, within runs of 32 values, as a quantized copy is within a block of one scale.

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
