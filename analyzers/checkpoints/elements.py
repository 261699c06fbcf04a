"""Reads a tensor's elements from its file, including strided ones.

Pickled checkpoints store views: a transposed weight, a slice of a fused one, a vector expanded to a matrix. `read_elements`
returns their elements in row-major order like any others. If only part of a view is wanted, or the view is too large to hold in
memory, a stream reads the same elements in file order instead (`memory_order`): all counts stay the same, but rows are
then rows of the memory layout.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from analyzers import limits
from analyzers.checkpoints.repository import RangeFile
from analyzers.checkpoints.tensor import Tensor

# Views up to HELD_BYTES (including gaps between their elements) are held in memory while they are read, at most HELD_AT_ONCE
# together. At this size every plan for a whole tensor is a single span, so the plan cannot change how the view is read.
HELD_AT_ONCE = 8
HELD_BYTES = limits.STREAM_BYTES // HELD_AT_ONCE


def read_elements(file: RangeFile, tensor: Tensor, start: int, count: int, buffer: NDArray[np.uint8]) -> NDArray[Any]:
    """Read elements ``start`` to ``start + count`` of a tensor, in row-major order of its shape.

    buffer: (>= count * itemsize,) uint8, filled from its start. Returns (count,) unsigned integers, a view of the buffer.
    A contiguous range is read in one read, directly into the buffer. Otherwise gaps between the elements are read too, in
    pieces of at most CHUNK_BYTES. Raises what the file's reads raise.
    """
    part = buffer[: count * tensor.itemsize]
    codes = part.view(f"<u{tensor.itemsize}")
    if tensor.strides is None:
        file.read_into(tensor.offset + start * tensor.itemsize, part.data)
        return codes
    shape, strides = _merged(tensor.shape, tensor.strides)
    for at, first, lengths in _boxes(shape, start, start + count):
        out = codes[at - start : at - start + prod(lengths)].reshape(lengths)
        _read_box(file, tensor.offset + tensor.itemsize * _inner(first, strides), strides, out)
    return codes


def gather(held: NDArray[np.uint8], tensor: Tensor, start: int, count: int, buffer: NDArray[np.uint8]) -> NDArray[Any]:
    """`read_elements` from memory. held: the bytes from the tensor's first element to its last (`read_extent`)."""
    assert tensor.strides is not None
    codes = buffer[: count * tensor.itemsize].view(f"<u{tensor.itemsize}")
    shape, strides = _merged(tensor.shape, tensor.strides)
    for at, first, lengths in _boxes(shape, start, start + count):
        out = codes[at - start : at - start + prod(lengths)].reshape(lengths)
        np.copyto(out, _strided(held[tensor.itemsize * _inner(first, strides) :], lengths, strides, tensor.itemsize))
    return codes


def read_bytes(tensor: Tensor, start: int, count: int) -> int:
    """Upper bound on the bytes that `read_elements` reads, including gaps; for packed elements, the bytes that contain them."""
    if tensor.strides is None or count == 0:
        return -(-count * tensor.bits // 8)
    shape, strides = _merged(tensor.shape, tensor.strides)
    return sum(_extent(lengths, strides) for _, _, lengths in _boxes(shape, start, start + count)) * tensor.itemsize


def normal_strides(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...] | None:
    """Strides in the convention of `Tensor`: None for contiguous row-major, 0 on every axis whose stride does not matter."""
    if 0 in shape:
        return None
    expected = 1
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length > 1 and stride != expected:
            return tuple(s if n > 1 else 0 for n, s in zip(shape, strides, strict=True))
        expected *= length
    return None


def as_read(tensor: Tensor, count: int) -> Tensor:
    """The tensor as a stream reads ``count`` elements of it: in `memory_order` for a view that cannot be held, else unchanged.

    Views with scales always keep their order, since a scale is located by row and column.
    """
    if tensor.strides is None or tensor.scale is not None or is_held(tensor, count):
        return tensor
    return memory_order(tensor)


def is_held(tensor: Tensor, count: int) -> bool:
    """Whether a view is read at once and held in memory: it is wanted as a whole and small enough."""
    return tensor.strides is not None and count == tensor.elements and max(extent(tensor), tensor.nbytes) <= HELD_BYTES


def extent(tensor: Tensor) -> int:
    """Bytes from the first element of a tensor to its last, including gaps."""
    if tensor.strides is None:
        return tensor.nbytes
    return _extent(tensor.shape, tensor.strides) * tensor.itemsize


def memory_order(tensor: Tensor) -> Tensor:
    """The same elements with axes sorted by stride, so that reading the tensor in order reads the file sequentially."""
    if tensor.strides is None:
        return tensor
    axes = sorted((n, s) for n, s in zip(tensor.shape, tensor.strides, strict=True) if n > 1)
    axes.sort(key=lambda axis: -axis[1])
    shape, strides = tuple(n for n, _ in axes), tuple(s for _, s in axes)
    return replace(tensor, shape=shape, strides=normal_strides(shape, strides))


def read_extent(file: RangeFile, tensor: Tensor) -> NDArray[np.uint8]:
    """Read the bytes from the first element of a tensor to its last into memory."""
    held = np.empty(extent(tensor), np.uint8)
    file.read_into(tensor.offset, held.data)
    return held


class CountedReads:
    """A `RangeFile` that counts its reads: a piece of a view may take several."""

    def __init__(self, file: RangeFile) -> None:
        self.path = file.path
        self.size = file.size
        self._file = file
        self._reads = 0

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Read from the underlying file."""
        self._reads += 1
        self._file.read_into(offset, buffer)

    def close(self) -> None:
        """Do nothing: the checkpoint owns the file and closes it."""

    def taken(self) -> int:
        """Reads since the last call."""
        reads, self._reads = self._reads, 0
        return reads


def _read_box(file: RangeFile, at: int, strides: tuple[int, ...], out: NDArray[Any]) -> None:
    """Fill ``out`` with the elements of a box whose first element is at byte ``at``; boxes are halved until each fits one read."""
    size = _extent(out.shape, strides) * out.itemsize
    if size <= max(limits.CHUNK_BYTES, out.itemsize):
        held = np.empty(size, np.uint8)
        file.read_into(at, held.data)
        np.copyto(out, _strided(held, out.shape, strides, out.itemsize))
        return
    axis = max(range(out.ndim), key=lambda i: (out.shape[i] - 1) * strides[i])
    half = out.shape[axis] // 2
    before = (slice(None),) * axis
    _read_box(file, at, strides, out[(*before, slice(half))])
    _read_box(file, at + half * strides[axis] * out.itemsize, strides, out[(*before, slice(half, None))])


def _strided(held: NDArray[np.uint8], shape: Sequence[int], strides: Sequence[int], itemsize: int) -> NDArray[Any]:
    whole = held[: len(held) // itemsize * itemsize].view(f"<u{itemsize}")
    return as_strided(whole, shape, [stride * itemsize for stride in strides], writeable=False)


def _boxes(shape: tuple[int, ...], start: int, stop: int) -> Iterator[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    """Split elements ``start`` to ``stop`` of a shape into boxes: number of the first element, its index, and the lengths."""
    pending: list[tuple[tuple[int, ...], int, int, int]] = [((), 0, start, stop)] if start < stop else []
    while pending:
        index, base, start, stop = pending.pop()  # elements from ``base`` on share the leading ``index``
        axis = len(index)
        if axis == len(shape):
            yield base, index, (1,) * axis
            continue
        inner = prod(shape[axis + 1 :])
        first, last = -(-start // inner), stop // inner
        if first > last:  # the range stays within one index of this axis
            pending.append(((*index, start // inner), base + start // inner * inner, start % inner, start % inner + stop - start))
            continue
        if stop > last * inner:
            pending.append(((*index, last), base + last * inner, 0, stop - last * inner))
        if first < last:
            lengths = (*(1,) * axis, last - first, *shape[axis + 1 :])
            yield base + first * inner, (*index, first, *(0,) * (len(shape) - axis - 1)), lengths
        if start < first * inner:
            pending.append(((*index, first - 1), base + (first - 1) * inner, start - (first - 1) * inner, inner))


def _merged(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The same elements in the same order with as few axes as possible, at least one."""
    lengths, steps = [1], [0]
    for length, stride in zip(shape, strides, strict=True):
        if length == 1:
            continue
        if lengths[-1] == 1 or steps[-1] == stride * length:
            lengths[-1] *= length
            steps[-1] = stride
        else:
            lengths.append(length)
            steps.append(stride)
    return tuple(lengths), tuple(steps)


def _extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    return _inner([length - 1 for length in shape], strides) + 1


def _inner(index: Sequence[int], strides: Sequence[int]) -> int:
    return sum(i * s for i, s in zip(index, strides, strict=True))
