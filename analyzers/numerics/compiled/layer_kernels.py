"""What stands between the products of a decoder layer, forward and backward, each in one pass over its rows (`layers`)."""

from typing import Any

import numpy as np
from numba import float32, int32
from numpy.typing import NDArray

from analyzers.numerics.compiled.compiler import jit
from analyzers.numerics.compiled.vector_code import bits_of_float, float_of_bits

Floats = NDArray[np.float32]

# Sums of a row in as many parts as a vector has lanes, and products added in one step.
_FAST: Any = {"reassoc", "contract", "nsz"}

# exp(r) for |r| <= ln 2 / 2 by the first terms of its series, better than 2^-24; ln 2 in two parts, of which the first times n is exact.
_LOG2_E, _LN_2, _LN_2_REST = float32(1.4426950408889634), float32(0.693359375), float32(-2.12194440e-4)
_LARGEST = float32(88.0)

# So many rows are summed in float32, and their sums in float64.
_SUMMED = 256


@jit(fastmath=_FAST)
def rms_norm(rows: Floats, weight: Floats, epsilon: float, normed: Floats, inverse: Floats) -> None:
    """`layers.rms_norm`."""
    number, width = rows.shape
    for i in range(number):
        row, out = rows[i], normed[i]
        square: Any = float32(0)
        for j in range(width):
            square += row[j] * row[j]
        mean: Any = square / float32(width) + float32(epsilon)
        inverse[i] = 1 / np.sqrt(max(mean, float32(0)))  # of what cannot be negative a root needs no library
        for j in range(width):
            out[j] = row[j] * inverse[i] * weight[j]


@jit(fastmath=_FAST)
def add_rms_norm_gradient(gradient: Floats, rows: Floats, weight: Floats, inverse: Floats, total: Floats) -> None:
    """`layers.add_rms_norm_gradient`."""
    number, width = rows.shape
    for i in range(number):
        row, arrived, out, scale = rows[i], gradient[i], total[i], inverse[i]
        product = float32(0)
        for j in range(width):
            product += arrived[j] * weight[j] * row[j]
        back = product * scale * scale * scale / float32(width)
        for j in range(width):
            out[j] += arrived[j] * weight[j] * scale - row[j] * back


@jit(fastmath=_FAST)
def rotate(rows: Floats, cosines: Floats, sines: Floats, back: bool) -> None:
    """`layers.rotate`."""
    length, size = cosines.shape
    half = size // 2
    for first in range(0, len(rows), length):
        for position in range(min(length, len(rows) - first)):
            row, cosine, sine = rows[first + position], cosines[position], sines[position]
            for head in range(0, len(row), size):
                low, high = row[head : head + half], row[head + half : head + size]
                if back:
                    for j in range(half):
                        one, other = low[j], high[j]
                        low[j] = one * cosine[j] + other * sine[half + j]
                        high[j] = other * cosine[half + j] - one * sine[j]
                else:
                    for j in range(half):
                        one, other = low[j], high[j]
                        low[j] = one * cosine[j] - other * sine[j]
                        high[j] = other * cosine[half + j] + one * sine[half + j]


@jit(fastmath={"contract", "nsz"})
def _exp(power: Any) -> Any:
    """e^power in float32, for powers that are not above `_LARGEST`; 0 below -`_LARGEST`, NaN for NaN."""
    near = power if power > -_LARGEST else -_LARGEST  # a number in any case
    whole = np.floor(near * _LOG2_E + float32(0.5))
    rest = power - whole * _LN_2 - whole * _LN_2_REST
    term = float32(1.9875691500e-4)
    term = term * rest + float32(1.3981999507e-3)
    term = term * rest + float32(8.3334519073e-3)
    term = term * rest + float32(4.1665795894e-2)
    term = term * rest + float32(1.6666665459e-1)
    term = term * rest + float32(5.0000001201e-1)
    found = (term * rest * rest + rest + float32(1)) * float_of_bits(int32((int32(whole) + int32(127)) << int32(23)))
    return float32(0) if power < -_LARGEST else found


@jit(inline="always")
def _sigmoid(x: Any) -> Any:
    """1 / (1 + e^-x), in float32; 0 where e^-x is too large for it."""
    return float32(0) if -x > _LARGEST else float32(1) / (float32(1) + _exp(min(-x, _LARGEST)))


@jit(inline="always")
def _in_order(bits: Any) -> Any:
    """Of the bits of a float32 an int32 that is larger for a larger number; the same way back."""
    return int32(bits ^ ((bits >> int32(31)) & int32(0x7FFFFFFF)))


@jit()
def _maximum(bits: NDArray[np.int32]) -> Any:
    """The largest of float32 numbers, given as their bits: whole numbers LLVM compares in vectors. Of no use where one is NaN."""
    found = int32(-0x80000000)
    for j in range(bits.size):
        found = max(found, _in_order(bits[j]))
    return float_of_bits(_in_order(found))


@jit(fastmath=_FAST)
def cross_entropy(
    logits: Floats, bits: NDArray[np.int32], targets: NDArray[np.int64], weights: Floats, gaps: Floats, totals: Floats
) -> None:
    """`layers.cross_entropy`, of which it finds max z - z_target and the sum of e^(z - max z). bits: those of the logits."""
    rows, size = logits.shape
    for i in range(rows):
        row, most = logits[i], _maximum(bits[i])
        gaps[i] = most - row[targets[i]]
        total = float32(0)
        for j in range(size):
            row[j] = _exp(row[j] - most)
            total += row[j]
        totals[i] = total
        scale = weights[i] / total
        for j in range(size):
            row[j] *= scale
        row[targets[i]] -= weights[i]


@jit(inline="always")
def _magnitude(x: Any) -> Any:
    """The bits of |x|, which are a larger number for a larger one, and the largest for NaN."""
    return int32(bits_of_float(x) & int32(0x7FFFFFFF))


@jit(fastmath=_FAST)
def swiglu(gate: Floats, up: Floats, product: Floats) -> None:
    """`layers.swiglu`, of (n,) each."""
    for i in range(len(gate)):
        product[i] = gate[i] * _sigmoid(gate[i]) * up[i]


@jit(fastmath=_FAST)
def swiglu_gradient(
    gradient: Floats, gate: Floats, up: Floats, product: Floats, lengths: NDArray[np.int64], activity: NDArray[np.float64], room: Floats
) -> Any:
    """`layers.swiglu_gradient`, with room (F,) for sums of some rows."""
    of_gate, of_up, of_product = int32(0), int32(0), int32(0)
    each, width = len(gate) // len(lengths), len(room)
    for sample in range(len(lengths)):
        for first in range(0, each, _SUMMED):
            room[:] = float32(0)
            for row in range(first, min(first + _SUMMED, each)):
                arrived, x, factor, out = (
                    gradient[sample * each + row], gate[sample * each + row], up[sample * each + row], product[sample * each + row],
                )  # fmt: skip
                real = float32(1) if row < lengths[sample] else float32(0)
                for j in range(width):
                    share = _sigmoid(x[j])
                    active = x[j] * share
                    out[j] = active * factor[j]
                    room[j] += real * abs(out[j])
                    x[j], factor[j] = arrived[j] * factor[j] * (share + active * (float32(1) - share)), arrived[j] * active
                    of_product = max(of_product, _magnitude(out[j]))
                    of_gate, of_up = max(of_gate, _magnitude(x[j])), max(of_up, _magnitude(factor[j]))
            for j in range(width):
                activity[sample, j] += room[j]
    return float_of_bits(of_gate), float_of_bits(of_up), float_of_bits(of_product)


@jit(fastmath=_FAST)
def add_magnitudes(rows: Floats, sums: Floats) -> None:
    """`layers.magnitudes`."""
    for i in range(len(rows)):
        row = rows[i]
        for j in range(len(sums)):
            sums[j] += abs(row[j])


@jit()
def rows_with_any(rows: Floats, found: NDArray[np.bool_]) -> None:
    """`layers.rows_with_any`."""
    for i in range(len(rows)):
        found[i] = False
        for x in rows[i]:
            if x != float32(0):
                found[i] = True
                break
