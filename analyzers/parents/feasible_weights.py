"""Finds the weights at which stored values are exactly a combination: each value confines the weights, all together determine them.

A stored value x_j stands for its cell [l_j, u_j], the numbers that round to it. X = round(sum of a_i P_i) therefore says that a lies
between two planes, l_j <= a.P_j <= u_j, for each j, and hence in a polytope. Least squares cannot use this: it treats rounding as noise
that is independent of the parents. But between siblings that differ by an ulp or two the rounding error is a function of their difference,
and the weights come out wrong by 0.02 and more, far beyond their intervals. The polytope contains the true weights.
"""

import numpy as np

from analyzers.parents.rounding import Floats, cells, ulps

# Distances from the cell count quadratically up to one cell width, linearly beyond (Huber): values that do not fit must not dominate.
_STEPS = 100
_DAMPING = 1e-6
_UNIT = 2.0**-24  # half an ulp of fp32, relative


def arithmetic_error(parts: Floats) -> Floats:
    """Bound (n,) the error of a sum of the products ``parts``, (k, n), in fp32, in any order, with rounded weights."""
    error: Floats = (len(parts) + 1) * _UNIT * np.abs(parts).sum(axis=0)
    return error


def slabs(values: Floats, parents: Floats, weights: Floats, dtype: str, stored: bool) -> tuple[Floats, Floats, Floats]:
    """Return (n,) l and u between which a.P_j lies if x_j = round(a.P_j), and the error that fp32 arithmetic may add.

    parents: (k, n). stored: each product is rounded to ``dtype`` first, which adds half an ulp of each product to the slab. Products are
    taken at ``weights``.
    """
    low, high = cells(values, dtype)
    parts = weights[:, None] * parents
    more = ulps(parts, dtype).sum(axis=0) / 2 if stored else 0.0
    return low - more, high + more, arithmetic_error(parts)


def closest(values: Floats, parents: Floats, start: Floats, dtype: str, stored: bool = False) -> Floats:
    """Find (k,) the weights a near ``start`` that minimise sum of rho(d_j), d_j the distance of a.P_j from its slab in slab widths.

    rho is Huber's function with threshold 1. Uses Levenberg-Marquardt: the Hessian of the values outside their slabs, damped by that of all
    values, which makes each step descend.
    """
    low, high, error = slabs(values, parents, start, dtype, stored)
    scale = high - low + 2 * error  # the cell of 0 has almost no width
    rows, low, high = parents / scale, low / scale, high / scale
    whole, weights, damping = rows @ rows.T, start, _DAMPING
    distance, loss = _distances(rows, low, high, weights)
    for _ in range(_STEPS):
        factor = (distance != 0) / np.maximum(1, np.abs(distance))
        gradient = rows @ (factor * distance)
        hessian = (rows * factor) @ rows.T + damping * whole
        trial = weights - np.linalg.pinv(hessian, rcond=1e-13, hermitian=True) @ gradient
        trial_distance, trial_loss = _distances(rows, low, high, trial)
        if trial_loss < loss:
            done = trial_loss > loss * (1 - 1e-9)
            weights, distance, loss, damping = trial, trial_distance, trial_loss, max(_DAMPING, damping / 10)
            if done or not loss:
                break
        elif damping >= 1:
            break
        else:
            damping *= 10
    return weights


def _distances(rows: Floats, low: Floats, high: Floats, weights: Floats) -> tuple[Floats, float]:
    """Return (n,) how far a.P_j lies above (positive) or below its slab, and the loss."""
    total = weights @ rows
    distance = total - np.clip(total, low, high)
    size = np.abs(distance)
    return distance, float(np.where(size <= 1, size**2 / 2, size - 0.5).sum())
