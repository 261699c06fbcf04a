"""How far values are from reference values, and how large values are, in one pass: numba on the CPU, like `kernels`."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numba import float64, int64, uint16, uint32
from numpy.typing import NDArray

from analyzers import limits
from analyzers.numerics.compiler import jit

Kind = Literal["bf16", "fp16", "fp32"]

# Elements whose sums are taken in one go: the sums of blocks are added in their order, so that a result does not depend on threads.
_BLOCK = 1 << 15
# Elements from which on more threads are worth waking.
_SHARED = 1 << 21


def difference_sums(x: NDArray[Any], ref: NDArray[np.float32], factor: float, kind: Kind) -> NDArray[np.float64]:
    """(R, 6) float64: of each row the sums of ref, d, ref^2, d^2 and ref d, and the largest |d|, over d = factor x - ref in float64.

    x, ref: (R, n), x as patterns: uint16 of bf16 and fp16, uint32 of fp32. factor is a power of two. Where an element of a row is not
    finite, so is one of its sums.
    """
    rows, length = x.shape
    each = -(-length // _BLOCK)
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


@jit()
def _blocks(
    x: NDArray[Any], ref: NDArray[np.float32], factor: float, half: bool, start: int, stop: int, found: NDArray[np.float64]
) -> None:
    """Fill rows start:stop of ``found`` (blocks, 6). half: x is fp16."""
    each = -(-x.shape[1] // _BLOCK)
    wide = np.empty(_BLOCK, dtype=np.uint32)
    for block in range(start, stop):
        row, first = block // each, block % each * _BLOCK
        codes, beside = x[row, first : first + _BLOCK], ref[row, first : first + _BLOCK]
        for i in range(codes.size):
            wide[i] = _from_fp16(codes[i]) if half else uint32(codes[i]) << uint32(16 if x.itemsize == 2 else 0)
        found[block] = _sums(wide[: codes.size].view(np.float32), beside, factor)


@jit(inline="always")
def _from_fp16(code: np.uint16) -> Any:
    """The pattern in fp32 of one in fp16; of an infinity where it is not finite."""
    sign, rest = uint32(code & uint16(0x8000)) << uint32(16), uint32(code & uint16(0x7FFF)) << uint32(13)
    value = np.float32(np.uint32(rest).view(np.float32) * np.float32(2.0**112))  # fp32's exponents begin so much lower
    return sign | (uint32(0x7F800000) if code & uint16(0x7C00) == uint16(0x7C00) else uint32(np.float32(value).view(np.uint32)))


# Sums may be taken in any order, so that vectors can be added; NaN and infinity arrive in them as ever.
@jit(fastmath={"reassoc", "contract", "nsz"})
def _sums(x: NDArray[np.float32], ref: NDArray[np.float32], factor: float) -> tuple[float, float, float, float, float, float]:
    """The six of one block, (n,)."""
    sum_ref, sum_d, ref_ref, d_d, ref_d = 0.0, 0.0, 0.0, 0.0, 0.0
    largest = int64(0)  # |d| as a pattern: vectors of integers have a largest element, of floats that may be NaN they have none
    for i in range(x.size):
        r = float64(ref[i])
        d = float64(x[i]) * factor - r
        sum_ref += r
        sum_d += d
        ref_ref += r * r
        d_d += d * d
        ref_d += r * d
        largest = max(largest, np.float64(abs(d)).view(np.int64))
    return sum_ref, sum_d, ref_ref, d_d, ref_d, np.int64(largest).view(np.float64)


def largest_pattern(codes: NDArray[Any]) -> int:
    """The largest of uint16 or uint32 patterns (n,) but for their sign: that of the largest |x|, or of an infinity or NaN."""
    return int(_largest16(codes) if codes.itemsize == 2 else _largest32(codes))


@jit()
def _largest16(codes: NDArray[np.uint16]) -> Any:
    largest = uint16(0)
    for i in range(codes.size):
        largest = max(largest, uint16(codes[i] & uint16(0x7FFF)))
    return largest


@jit()
def _largest32(codes: NDArray[np.uint32]) -> Any:
    largest = uint32(0)
    for i in range(codes.size):
        largest = max(largest, uint32(codes[i] & uint32(0x7FFFFFFF)))
    return largest


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, limits.cores() - 1), "differences")


def warm() -> None:
    """Compile all of it, or load it from numba's cache."""
    values = np.ones((1, 1), dtype=np.float32)
    difference_sums(values.view(np.uint32), values, 1.0, "fp32")
    difference_sums(values.astype(np.uint16), values, 1.0, "bf16")
    for width in (2, 4):
        largest_pattern(np.zeros(1, dtype=f"u{width}"))
