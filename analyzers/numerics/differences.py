"""How far values are from reference values, and how large values are, in one pass."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numba import njit
from numpy.typing import NDArray

from analyzers import limits

Kind = Literal["bf16", "fp16", "fp32"]

# Elements whose sums are taken in one go: the sums of blocks are added in their order, so that a result does not depend on threads.
BLOCK = 1 << 15
# Elements from which on more threads are worth waking.
_SHARED = 1 << 21


def difference_sums(x: NDArray[Any], ref: NDArray[np.float32], factor: float, kind: Kind) -> NDArray[np.float64]:
    """(R, 6) float64: of each row the sums of ref, d, ref^2, d^2 and ref d, and the largest |d|, over d = factor x - ref in float64.

    x, ref: (R, n), x as patterns: uint16 of bf16 and fp16, uint32 of fp32. factor is a power of two. Where an element of a row is not
    finite, so is one of its sums.
    """
    rows, length = x.shape
    each = -(-length // BLOCK)
    found = np.empty((rows * each, 6))
    threads = min(limits.cores(), len(found)) if x.size >= _SHARED else 1
    own, *others = pairwise(len(found) * part // threads for part in range(threads + 1))
    how = x, ref, factor, kind == "fp16"
    waiting = [_pool().submit(_blocks, *how, *part, found) for part in others]
    _blocks(*how, *own, found)
    for part in waiting:
        part.result()
    blocks = found.reshape(rows, each, 6)
    return np.concatenate((blocks[..., :5].sum(1), blocks[..., 5:].max(1)), axis=1)


def largest_pattern(codes: NDArray[Any]) -> int:
    """The largest of uint16 or uint32 patterns (n,) but for their sign: that of the largest |x|, or of an infinity or NaN."""
    return int(_largest(codes, 0x7FFF if codes.itemsize == 2 else 0x7FFFFFFF))


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, limits.cores() - 1), "differences")


@njit(nogil=True, cache=True)
def _blocks(
    x: NDArray[Any], ref: NDArray[np.float32], factor: float, half: bool, start: int, stop: int, found: NDArray[np.float64]
) -> None:
    """Fill rows start:stop of ``found`` (blocks, 6). half: x is fp16."""
    each = -(-x.shape[1] // BLOCK)
    shift = np.uint32(32 - 8 * x.itemsize)
    values = np.empty(BLOCK, dtype=np.float32)
    for block in range(start, stop):
        row, first = block // each, block % each * BLOCK
        codes, reference = x[row, first : first + BLOCK], ref[row, first : first + BLOCK]
        for i in range(codes.size):
            values[i] = _from_fp16(codes[i]) if half else np.uint32(np.uint32(codes[i]) << shift).view(np.float32)
        found[block] = _sums(values[: codes.size], reference, factor)


@njit(nogil=True, cache=True)
def _from_fp16(code: int) -> np.float32:
    """The value of an fp16 pattern in fp32; an infinity where it is not finite."""
    sign = np.float32(-1.0) if code & 0x8000 else np.float32(1.0)
    if code & 0x7C00 == 0x7C00:
        return sign * np.float32(np.inf)
    magnitude = np.uint32((np.int64(code) & 0x7FFF) << 13).view(np.float32)
    return np.float32(sign * magnitude * np.float32(2.0**112))  # fp32's exponents begin so much lower


# Sums may be taken in any order, so that vectors can be added; NaN and infinity propagate through them as ever.
@njit(nogil=True, cache=True, fastmath={"reassoc", "contract", "nsz"})
def _sums(x: NDArray[np.float32], ref: NDArray[np.float32], factor: float) -> tuple[float, float, float, float, float, float]:
    """The six of one block, (n,)."""
    sum_ref = sum_d = ref_ref = d_d = ref_d = 0.0
    largest: Any = 0  # |d| as a pattern: vectors of integers have a largest element, of floats that may be NaN they have none
    for i in range(x.size):
        r = np.float64(ref[i])
        d = np.float64(x[i]) * factor - r
        sum_ref += r
        sum_d += d
        ref_ref += r * r
        d_d += d * d
        ref_d += r * d
        largest = max(largest, np.float64(abs(d)).view(np.int64))
    return sum_ref, sum_d, ref_ref, d_d, ref_d, np.int64(largest).view(np.float64)


@njit(nogil=True, cache=True)
def _largest(codes: NDArray[Any], mask: int) -> Any:
    largest: Any = 0
    for i in range(codes.size):
        largest = max(largest, np.int64(codes[i]) & mask)
    return largest
