"""Fits X = sum of a_i P_i by least squares from Gram matrices, with intervals by the jackknife."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analyzers.comparison.counting import GROUPS
from analyzers.numerics import student_t

Floats = NDArray[np.float64]

# Smallest eigenvalue of the parents' normalised Gram matrix for which a solution is unique in float64.
_SINGULAR = 1e-11
# Half-width of an interval beyond which a weight counts as unknown if two parents have at least this cosine. Weights that differ between
# layers also have wide intervals.
_VAGUE, _SIMILAR = 0.1, 0.9
_ATTENUATION = 4.0  # see `_bias`


@dataclass(frozen=True, slots=True)
class Weights:
    """The least-squares solution over some Gram matrices G of [X, P_1, ..., P_k].

    estimate, low, high: (k,) a_i and its interval; square: |X - fit|^2 of least squares; total: |X|^2.
    """

    estimate: Floats
    low: Floats
    high: Floats
    square: float
    total: float

    @property
    def residual(self) -> float | None:
        """Relative residual |X - fit| / |X|."""
        return float(np.sqrt(self.square / self.total)) if self.total > 0 else None


def solve(grams: Floats, noise: float = 0.0) -> Weights:
    """Fit over all of ``grams``, (blocks, 1 + k, 1 + k), which must have a unique solution.

    95% intervals: stratified delete-one-block jackknife, `GROUPS` blocks per layer, with Student's quantile for the effective number of
    equally weighted blocks. There is no finite population correction: even all values of a layer are a noisy measurement of its weights.
    With fewer than two blocks the interval is infinite. noise: sum of squares of the rounding errors of X, whose component along the
    parents' differences is a bias that blocks do not show (`_bias`).
    """
    whole = grams.sum(axis=0)
    estimate = weights_of(whole[None])[0]
    total = float(whole[0, 0])
    square = max(0.0, total - 2 * float(estimate @ whole[1:, 0]) + float(estimate @ whole[1:, 1:] @ estimate))
    used = np.flatnonzero(grams[:, 0, 0] > 0)
    _, strata, sizes = np.unique(used // GROUPS, return_inverse=True, return_counts=True)
    if sizes.min(initial=2) < 2:
        strata, sizes = np.zeros(len(used), np.int64), np.array([len(used)])
    if len(used) < 2:
        return Weights(estimate, np.full(len(estimate), -np.inf), np.full(len(estimate), np.inf), square, total)
    sums = np.zeros((len(sizes), *whole.shape))
    np.add.at(sums, strata, grams[used])
    size = sizes[strata, None, None]
    without = weights_of(whole + (sums[strata] - size * grams[used]) / (size - 1))
    mean = np.zeros((len(sizes), len(estimate)))
    np.add.at(mean, strata, without / sizes[strata, None])
    parts = (1 - 1 / sizes)[strata, None] * np.square(without - mean[strata])
    equal = parts.sum(axis=0) ** 2 / np.maximum(np.square(parts).sum(axis=0), 1e-300)  # effective number of equally weighted blocks
    quantiles = np.array([student_t(max(1, min(len(used) - len(sizes), round(number) - 1))) for number in equal.tolist()])
    margin = quantiles * np.sqrt(parts.sum(axis=0)) + _bias(whole, noise)
    return Weights(estimate, estimate - margin, estimate + margin, square, total)


def _bias(whole: Floats, noise: float) -> Floats:
    """Bound (k,) the bias of each weight due to rounding: at most sqrt(noise (G^-1)_ii), if the error is a multiple of the difference.

    The bias comes close to this bound if parents are an ulp apart; for larger differences it falls with the square, like attenuation by
    errors in variables: in simulations it is at most 3 noise (G^-1)_ii.
    """
    diagonal = np.diagonal(whole)[1:].copy()
    diagonal[diagonal <= 0] = 1.0
    inverse = np.linalg.pinv(whole[1:, 1:] / np.sqrt(np.outer(diagonal, diagonal)), rcond=1e-13, hermitian=True)
    ratio = np.maximum(noise * np.diagonal(inverse) / diagonal, 0)
    bias: Floats = np.minimum(np.sqrt(ratio), _ATTENUATION * ratio)
    return bias


def squares(grams: Floats, chosen: Sequence[int]) -> Floats:
    """Return (grams,) |X - fit|^2 for X fitted by only the ``chosen`` parents (counted from 0), in each of ``grams`` separately."""
    if not chosen:
        return np.asarray(np.maximum(grams[:, 0, 0], 0))
    rows = [1 + i for i in chosen]
    estimate = weights_of(grams[:, [0, *rows]][:, :, [0, *rows]])
    explained = np.einsum("bi,bi->b", estimate, grams[:, rows, 0])
    left: Floats = np.maximum(grams[:, 0, 0] - explained, 0)
    return left


def weights_of(grams: Floats) -> Floats:
    """Return (blocks, k) the weights of least norm in each block, for parents scaled to unit norm."""
    diagonal = np.sqrt(np.maximum(np.diagonal(grams, axis1=1, axis2=2)[:, 1:], 0))
    scale = np.where(diagonal > 0, diagonal, 1.0)
    normal = grams[:, 1:, 1:] / (scale[:, :, None] * scale[:, None, :])
    right = grams[:, 1:, 0] / scale
    found: Floats = (np.linalg.pinv(normal, rcond=1e-13, hermitian=True) @ right[:, :, None])[:, :, 0] / scale
    return found


def correlations(gram: Floats) -> Floats:
    """Return the (k, k) cosines between the parents."""
    norms = np.sqrt(np.maximum(np.diagonal(gram)[1:], 0))
    scale = np.where(norms > 0, norms, 1.0)
    found: Floats = gram[1:, 1:] / np.outer(scale, scale)
    return found


def condition(gram: Floats) -> float | None:
    """Return the condition number of the parents' values, each scaled to unit norm; None if there is no unique solution."""
    if len(gram) < 2:
        return None
    values = np.linalg.eigvalsh(correlations(gram))
    return float(np.sqrt(values[-1] / values[0])) if values[0] > _SINGULAR else None


def distinguishable(grams: Floats, noise: float = 0.0) -> tuple[list[int], dict[int, list[int]]]:
    """Determine which parents (counted from 0) have separate weights, and which others each of them represents.

    If the weights are not unique, or vague because two parents are similar, the most similar pair is merged, represented by the parent
    closer to X, until all weights are known or one parent is left. Parents without values are excluded. noise: see `solve`.
    """
    whole = grams.sum(axis=0)
    chosen = [i for i in range(len(whole) - 1) if whole[1 + i, 1 + i] > 0]
    alike: dict[int, list[int]] = {i: [] for i in chosen}
    distances = {i: whole[0, 0] - 2 * whole[0, 1 + i] + whole[1 + i, 1 + i] for i in chosen}
    while len(chosen) > 1:
        rows = [0, *(1 + i for i in chosen)]
        part = grams[:, rows][:, :, rows]
        cosines = correlations(part.sum(axis=0)) - 2 * np.eye(len(chosen))
        fit = solve(part, noise)
        vague = cosines.max() > _SIMILAR and (fit.high - fit.estimate > _VAGUE).any()
        if condition(part.sum(axis=0)) is not None and not vague:
            break
        pair = sorted((chosen[i] for i in np.unravel_index(int(cosines.argmax()), cosines.shape)), key=lambda i: (distances[i], i))
        chosen.remove(pair[1])
        alike[pair[0]] += [pair[1], *alike.pop(pair[1])]
    return chosen, alike
