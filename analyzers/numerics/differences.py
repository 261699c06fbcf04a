"""How far values are from reference values, and how large values are, in one pass."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from analyzers import limits
from analyzers.numerics.machine_code import Loop

Kind = Literal["bf16", "fp16", "fp32"]

_blocks, _largest16, _largest32 = (Loop("difference_kernels", name) for name in ("blocks", "largest16", "largest32"))

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
    return int(_largest16(codes) if codes.itemsize == 2 else _largest32(codes))


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, limits.cores() - 1), "differences")


def warm() -> None:
    """Load all of it, compiled if that was never done."""
    values = np.ones((1, 1), dtype=np.float32)
    difference_sums(values.view(np.uint32), values, 1.0, "fp32")
    difference_sums(values.astype(np.uint16), values, 1.0, "bf16")
    for width in (2, 4):
        largest_pattern(np.zeros(1, dtype=f"u{width}"))
