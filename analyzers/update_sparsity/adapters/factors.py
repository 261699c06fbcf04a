"""Measures low-rank updates s B A from their factors, without the product: norms, ranks, cosines, and angles between their subspaces.

Everything is computed in float64 from QR decompositions B = Q R and A^T = P S: the singular values of B A are those of the small matrix
R S^T, and its singular vectors are those of R S^T, turned by Q and P.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# A singular value counts toward the rank if it exceeds max(m, n) times this fraction of the largest, as for matrices in fp32
EPSILON = 2.0**-23
# and this fraction of |R| |S|, below which it is an error of the arithmetic
_NOISE = 2.0**-40


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """The update U diag(values) V^T from its factors. left: U, (m, k); right: V, (n, k), for the k singular values that count."""

    left: Floats
    values: Floats
    right: Floats


def singular_values(up: NDArray[Any], down: NDArray[Any], scale: float) -> Floats:
    """Return the singular values that count of scale * up @ down, with up (m, r) and down (r, n), all finite, in descending order.

    Those of at most max(m, n) 2^-23 of the largest do not count; their number is the rank. Time grows with (m + n) r^2.
    """
    factors = scale * up.astype(np.float64), down.T.astype(np.float64)
    r, s = (np.asarray(np.linalg.qr(factor, mode="r"), np.float64) for factor in factors)
    values: Floats = np.linalg.svd(np.asarray(r @ s.T, np.float64), compute_uv=False)
    return np.asarray(values[_counted(values, r, s, max(len(up), len(down.T)))])


def low_rank(up: NDArray[Any], down: NDArray[Any], scale: float) -> LowRank:
    """Decompose scale * up @ down, as `singular_values`."""
    (q, r), (p, s) = (np.linalg.qr(factor) for factor in (scale * up.astype(np.float64), down.T.astype(np.float64)))
    left, values, right = np.linalg.svd(r @ s.T)
    counted = _counted(values, r, s, max(len(up), len(down.T)))
    return LowRank(q @ left[:, counted], values[counted], p @ right[counted].T)


def _counted(values: Floats, r: Floats, s: Floats, longest: int) -> slice:
    least = max(longest * EPSILON * values.max(initial=0.0), _NOISE * float(np.linalg.norm(r) * np.linalg.norm(s)))
    return slice(int((values > least).sum()))


def effective_rank(values: Floats) -> float | None:
    """Return the exponential of the entropy of the normalised singular values (Roy and Vetterli, EUSIPCO 2007); None if there are none."""
    p = values / values.sum()
    return float(np.exp(-(p * np.log(p)).sum())) if values.size else None


def inner(one: LowRank, other: LowRank) -> float:
    """Return the inner product of two updates of the same shape: the sum of the products of their entries."""
    mixed = (one.left.T @ other.left) * (one.right.T @ other.right)
    return float(one.values @ mixed @ other.values)


@dataclass(frozen=True, slots=True)
class Subspaces:
    """Two subspaces of p <= q dimensions in n dimensions.

    shared: mean of the squared cosines of the p principal angles: 0 if they are orthogonal, 1 if one contains the other; by_chance: q / n,
    the mean of ``shared`` for random subspaces; angle: the smallest principal angle, in degrees.
    """

    shared: float
    by_chance: float
    angle: float


def subspaces(one: Floats, other: Floats) -> Subspaces | None:
    """Compare the spans of the orthonormal columns of two matrices, (n, p) and (n, q); None if one of them is {0}."""
    small, large = sorted((one, other), key=lambda basis: basis.shape[1])
    if not small.shape[1]:
        return None
    projected = large.T @ small
    cosines = np.linalg.svd(projected, compute_uv=False)
    # The sine is exact where the cosine is close to 1 (Björck and Golub)
    sines = np.linalg.svd(small - large @ projected, compute_uv=False)
    angle = np.arctan2(sines.min(), cosines.max())
    return Subspaces(min(float(np.square(cosines).mean()), 1.0), large.shape[1] / large.shape[0], float(np.degrees(angle)))
