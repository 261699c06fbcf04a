"""Least squares X = sum of a_i P_i from Gram matrices, with intervals by the jackknife."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics import student_t

Floats = NDArray[np.float64]

# Smallest eigenvalue of the normalised Gram matrix of the parents from which a solution is unique in float64.
_SINGULAR = 1e-11
# Half an interval's width beyond which a weight is not known, where two parents have at least this cosine. Weights that differ from layer
# to layer have wide intervals too.
_VAGUE, _SIMILAR = 0.1, 0.9


@dataclass(frozen=True, slots=True)
class Weights:
    """The solution over some Gram matrices G of [X, P_1, ..., P_k].

    estimate, low, high: (k,) a_i and its interval; square: |X - fit|^2 of least squares; total: |X|^2.
    """

    estimate: Floats
    low: Floats
    high: Floats
    square: float
    total: float

    @property
    def residual(self) -> float | None:
        """|X - fit| / |X|."""
        return float(np.sqrt(self.square / self.total)) if self.total > 0 else None


def solve(grams: Floats) -> Weights:
    """Fit over all of ``grams``, (blocks, 1 + k, 1 + k), which must have a unique solution.

    95% intervals: delete-one-block jackknife, the variance of the estimates without each block, with Student's quantile for blocks - 1
    degrees of freedom. One block, or none, says nothing about the error: the interval is infinite.
    """
    whole = grams.sum(axis=0)
    estimate = _solution(whole[None])[0]
    total = float(whole[0, 0])
    square = max(0.0, total - 2 * float(estimate @ whole[1:, 0]) + float(estimate @ whole[1:, 1:] @ estimate))
    used = grams[grams[:, 0, 0] > 0]
    blocks = len(used)
    if blocks < 2:
        return Weights(estimate, np.full(len(estimate), -np.inf), np.full(len(estimate), np.inf), square, total)
    without = _solution(whole - used)
    variance = (blocks - 1) / blocks * np.square(without - without.mean(axis=0)).sum(axis=0)
    margin = student_t(blocks - 1) * np.sqrt(variance)
    return Weights(estimate, estimate - margin, estimate + margin, square, total)


def squares(grams: Floats, chosen: Sequence[int]) -> float:
    """|X - fit|^2 where X is fitted by the ``chosen`` parents (from 0) alone, in each of ``grams`` separately."""
    if not chosen:
        return float(grams[:, 0, 0].sum())
    rows = [1 + i for i in chosen]
    estimate = _solution(grams[:, [0, *rows]][:, :, [0, *rows]])
    explained = np.einsum("bi,bi->b", estimate, grams[:, rows, 0])
    return float(np.maximum(grams[:, 0, 0] - explained, 0).sum())


def _solution(grams: Floats) -> Floats:
    """(blocks, k) the weights of least norm, in each block, of parents of unit norm."""
    diagonal = np.sqrt(np.maximum(np.diagonal(grams, axis1=1, axis2=2)[:, 1:], 0))
    scale = np.where(diagonal > 0, diagonal, 1.0)
    normal = grams[:, 1:, 1:] / (scale[:, :, None] * scale[:, None, :])
    right = grams[:, 1:, 0] / scale
    found: Floats = (np.linalg.pinv(normal, rcond=1e-13, hermitian=True) @ right[:, :, None])[:, :, 0] / scale
    return found


def correlations(gram: Floats) -> Floats:
    """(k, k) cosines between the parents."""
    norms = np.sqrt(np.maximum(np.diagonal(gram)[1:], 0))
    scale = np.where(norms > 0, norms, 1.0)
    found: Floats = gram[1:, 1:] / np.outer(scale, scale)
    return found


def condition(gram: Floats) -> float | None:
    """The condition number of the parents' values, each scaled to unit norm; None where there is no unique solution."""
    if len(gram) < 2:
        return None
    values = np.linalg.eigvalsh(correlations(gram))
    return float(np.sqrt(values[-1] / values[0])) if values[0] > _SINGULAR else None


def distinguishable(grams: Floats) -> tuple[list[int], dict[int, list[int]]]:
    """Which parents (from 0) have weights of their own, and which others each of them stands for.

    Where the weights are not unique, or vague because two parents are similar, the most similar pair is taken together, represented by
    the one closer to X, until all weights are known or one parent is left. Parents without values are left out.
    """
    whole = grams.sum(axis=0)
    chosen = [i for i in range(len(whole) - 1) if whole[1 + i, 1 + i] > 0]
    alike: dict[int, list[int]] = {i: [] for i in chosen}
    distances = {i: whole[0, 0] - 2 * whole[0, 1 + i] + whole[1 + i, 1 + i] for i in chosen}
    while len(chosen) > 1:
        rows = [0, *(1 + i for i in chosen)]
        part = grams[:, rows][:, :, rows]
        cosines = correlations(part.sum(axis=0)) - 2 * np.eye(len(chosen))
        fit = solve(part)
        vague = cosines.max() > _SIMILAR and (fit.high - fit.estimate > _VAGUE).any()
        if condition(part.sum(axis=0)) is not None and not vague:
            break
        pair = sorted((chosen[i] for i in np.unravel_index(int(cosines.argmax()), cosines.shape)), key=lambda i: (distances[i], i))
        chosen.remove(pair[1])
        alike[pair[0]] += [pair[1], *alike.pop(pair[1])]
    return chosen, alike
