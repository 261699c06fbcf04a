"""Detects merges of sparse updates: each value is a base's, plus the rescaled updates of some of the parents.

DARE (Yu et al., 2023) drops values of each update t_i = P_i - B at random and multiplies the rest by 1 / (1 - p); TIES (Yadav et al., 2023)
keeps the largest and averages those that agree. Either way x = B + s sum of c_i t_i over a subset of the parents that varies from value to
value, with s = 1 or 1 / (size of the subset). Least squares sees averages and noise; value by value, the subsets can be determined.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from analyzers.parents.feasible_weights import arithmetic_error
from analyzers.parents.rounding import Floats, cells, ulps

MOST_CANDIDATES = 4  # including the base
_ROUNDS = 3
_TRIED_ON = 1 << 14  # values
_LARGEST = 20.0  # largest factor of an update
# Share of values that such a merge must explain; and largest fraction it may leave of the values unexplained by fewer parents, or chance.
_EXPLAINS, _LEAVES = 0.97, 0.1
# Ratio of the mean sizes of kept and dropped updates above which the largest were kept, and below which they were chosen at random. Only
# updates of at least this many ulps of X are compared: smaller ones cannot be distinguished from none.
_TRIMMED, _RANDOM, _ULPS = 1.5, 1.2, 4


@dataclass(frozen=True, slots=True)
class Sparse:
    """An exact merge of sparse updates. Candidates are numbered from 0.

    factors: c_i of each parent; kept: share of the values with its update; share: share of the values that some subset explains exactly, up
    to rounding in X's dtype; by_chance: the same share with the updates of other values. method: "DARE" if updates were kept at random,
    "TIES" if the largest were kept, else "".
    """

    base: int
    parents: tuple[int, ...]
    factors: tuple[float, ...]
    kept: tuple[float, ...]
    share: float
    by_chance: float
    method: Literal["DARE", "TIES", ""]


def sparse_merge(some: Floats, candidates: Sequence[int], dtype: str) -> Sparse | None:
    """Find the base and the parents among ``candidates``, `MOST_CANDIDATES` at most; None if X is no such merge.

    some: (1 + m, n), X and every candidate.
    """
    some = some[:, :: max(1, some.shape[1] // _TRIED_ON)]
    tried = [_explained(some, base, sorted({*candidates} - {base}), dtype) for base in candidates]
    return max((each for each in tried if each is not None), key=lambda each: each.share, default=None)


def _explained(some: Floats, base: int, others: list[int], dtype: str) -> Sparse | None:
    x, b, updates = some[0], some[1 + base], some[[1 + i for i in others]] - some[1 + base]
    factors = _factors(x, b, updates, dtype)
    used = np.flatnonzero(factors)
    updates, factors = updates[used], factors[used]
    found, having = _fits(x, b, updates, factors, dtype)
    share, less = float(found.mean()), [_fits(x, b, np.roll(updates, 1, axis=1), factors, dtype)[0].mean()]
    for i in range(len(used)):
        less.append(_fits(x, b, np.delete(updates, i, axis=0), np.delete(factors, i), dtype)[0].mean())
    if not used.size or share < _EXPLAINS or 1 - share > _LEAVES * (1 - max(less)) or max(less) == share:
        return None
    large = np.abs(factors[:, None] * updates) > _ULPS * ulps(x, dtype)
    kept, dropped = (np.abs(updates[large & each]).sum() / max(1, (large & each).sum()) for each in (having, ~having))
    method: Literal["DARE", "TIES", ""] = "TIES" if kept > _TRIMMED * dropped else "DARE" if kept < _RANDOM * dropped else ""
    shares = having.mean(axis=1)
    if ((having[:, 1:] != having[:, :-1]).mean(axis=1) < shares * (1 - shares)).any():  # half as often as between independent neighbours
        method = ""  # whole tensors come from a parent
    parents = tuple(others[i] for i in used)
    return Sparse(base, parents, tuple(map(float, factors)), tuple(map(float, shares)), share, float(less[0]), method)


def _factors(x: Floats, b: Floats, updates: Floats, dtype: str) -> Floats:
    """Find (k,) the factor of each update that explains most of the values that the other updates leave unexplained."""
    low, high = cells(x, dtype)
    low, high = low - b, high - b
    factors = np.zeros(len(updates))
    for _ in range(_ROUNDS):
        for i in range(len(updates)):
            factors[i] = 0
            open_ = ~_fits(x, b, updates, factors, dtype)[0] & (updates[i] != 0)
            ends = []
            for subset, scale in _subsets(np.flatnonzero(factors), extra=1):
                rest = factors[subset] @ updates[subset]
                ends.append(np.sort([(each / scale - rest)[open_] / updates[i][open_] for each in (low, high)], axis=0))
            factors[i] = _most_common(np.concatenate(ends, axis=1))
    return factors


def _most_common(intervals: Floats) -> float:
    """Return a number that is in the largest number of ``intervals``, (2, n), among those between 0 and ``_LARGEST``."""
    low, high = intervals[:, (intervals[0] > 0) & (intervals[1] < _LARGEST)]
    if not low.size:
        return 0.0
    ends = np.concatenate([low, high])
    sequence = np.argsort(ends, kind="stable")
    inside = np.cumsum(np.where(sequence < low.size, 1, -1))
    most = int(inside[:-1].argmax())
    return float(ends[sequence[most : most + 2]].mean())


def _subsets(parents: NDArray[np.intp], extra: int = 0) -> Iterator[tuple[list[int], float]]:
    """Yield each subset with scale 1 and, if it has several members including ``extra`` unlisted ones, with 1 / its size."""
    for size in range(len(parents) + 1):
        for subset in combinations(parents.tolist(), size):
            yield list(subset), 1.0
            if size + extra > 1:
                yield list(subset), 1 / (size + extra)


def _fits(x: Floats, b: Floats, updates: Floats, factors: Floats, dtype: str) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return (n,) which values some subset explains, and (k, n) which updates the first such subset contains."""
    low, high = cells(x, dtype)
    found, having = np.zeros(x.size, np.bool_), np.zeros(updates.shape, np.bool_)
    for subset, scale in _subsets(np.flatnonzero(factors)):
        parts = scale * factors[subset][:, None] * updates[subset]
        error = arithmetic_error(np.vstack([b, parts])) + ulps(parts, dtype).sum(axis=0) / 2
        total = b + parts.sum(axis=0)
        new = ~found & (low - error <= total) & (total <= high + error)
        found |= new
        having[subset] |= new
    return found, having
