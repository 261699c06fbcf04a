"""What stands between the products of a decoder layer, forward and backward, in one pass each where torch takes three to fifteen.

All arrays are float32, their elements side by side. Axes: n rows, d width, L positions, D size of a head, F neurons, V tokens.
"""

from typing import cast

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.machine_code import Loop

Floats = NDArray[np.float32]

_rms_norm = Loop("layer_kernels", "rms_norm")
_add_rms_norm_gradient = Loop("layer_kernels", "add_rms_norm_gradient")
_rotate = Loop("layer_kernels", "rotate")
_swiglu = Loop("layer_kernels", "swiglu")
_swiglu_gradient = Loop("layer_kernels", "swiglu_gradient")
_cross_entropy = Loop("layer_kernels", "cross_entropy")
_add_magnitudes, _rows_with_any = (Loop("layer_kernels", name) for name in ("add_magnitudes", "rows_with_any"))

# Sums of so many numbers in float32, and sums of these in float64.
_TOGETHER = 256


def rms_norm(rows: Floats, weight: Floats, epsilon: float, normed: Floats, inverse: Floats) -> None:
    """``normed`` = x w / r with r^2 = mean(x^2) + epsilon for each row x, and ``inverse`` (n,) = 1 / r.

    rows, normed: (n, d); weight: (d,).
    """
    _rms_norm(rows, weight, epsilon, normed, inverse)


def add_rms_norm_gradient(gradient: Floats, rows: Floats, weight: Floats, inverse: Floats, total: Floats) -> None:
    """Add to ``total`` (n, d) the gradient of `rms_norm`'s rows, from that of its result: g w / r - x (g w . x) / (d r^3)."""
    _add_rms_norm_gradient(gradient, rows, weight, inverse, total)


def rotate(rows: Floats, cosines: Floats, sines: Floats, back: bool) -> None:
    """Turn heads by the angles of their positions, in place: (x, y) to (x cos - y sin, y cos + x sin) for the halves x, y of each head.

    rows: (n, heads D), of positions 0 to L - 1 again and again; cosines, sines: (L, D). back: by the transpose, as gradients are.
    """
    _rotate(rows, cosines, sines, back)


def swiglu(gate: Floats, up: Floats, product: Floats) -> None:
    """``product`` = silu(gate) up, with silu(x) = x / (1 + e^-x). (n, F) each."""
    _swiglu(*(each.reshape(-1) for each in (gate, up, product)))


def swiglu_gradient(
    gradient: Floats, gate: Floats, up: Floats, product: Floats, lengths: NDArray[np.int64], activity: NDArray[np.float64]
) -> tuple[float, float, float]:
    """`swiglu`, and in place of gate and up come their gradients from that of the product. (n, F) each, n / S rows of each sample.

    To ``activity`` (S, F) is added the sum of |product| over the first ``lengths`` (S,) rows of each sample. Returns the largest magnitudes
    of the gradients of gate and up, and of the product; NaN where one is.
    """
    of_gate, of_up, of_product = _swiglu_gradient(gradient, gate, up, product, lengths, activity, np.empty(gate.shape[1], np.float32))
    return of_gate, of_up, of_product


def cross_entropy(logits: Floats, targets: NDArray[np.int64], weights: Floats) -> Floats:
    """w (log sum_j e^z_j - z_target) for each row z; in place of ``logits`` (n, V) come their gradients w (softmax(z) - 1_target).

    targets: (n,), from 0 to V - 1; weights: w, (n,). Returns (n,), NaN for a row that holds NaN or infinity; minus infinity is e^z = 0.
    """
    gaps, totals = np.empty((2, len(logits)), np.float32)
    _cross_entropy(logits, logits.view(np.int32), targets, weights, gaps, totals)
    return cast(Floats, weights * (np.log(totals) + gaps))


def magnitudes(rows: Floats) -> NDArray[np.float64]:
    """(d,), the sum of |x| over all rows (n, d)."""
    total = np.zeros(rows.shape[1])
    for first in range(0, len(rows), _TOGETHER):
        part = np.zeros(rows.shape[1], np.float32)
        _add_magnitudes(rows[first : first + _TOGETHER], part)
        total += part
    return total


def rows_with_any(rows: Floats) -> NDArray[np.bool_]:
    """(n,), whether a row (n, d) has a number that is not 0: also NaN."""
    found = np.empty(len(rows), np.bool_)
    _rows_with_any(rows, found)
    return found


def warm() -> None:
    """Load them, compiled if that was never done."""
    one, row = np.ones((1, 2), np.float32), np.ones(2, np.float32)
    rms_norm(one, row, 1.0, one.copy(), row[:1])
    add_rms_norm_gradient(one, one, row, row[:1], one.copy())
    rotate(one.copy(), one, one, False)
    swiglu(one, one, one.copy())
    swiglu_gradient(one, one.copy(), one.copy(), one.copy(), np.ones(1, np.int64), np.zeros((1, 2)))
    cross_entropy(one.copy(), np.zeros(1, np.int64), row[:1])
    magnitudes(one)
    rows_with_any(one)
