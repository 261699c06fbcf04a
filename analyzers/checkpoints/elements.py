"""A tensor's elements out of its file, also where the file holds them in another order or with gaps between them.

Pickled checkpoints store views: a transposed weight, a part of a fused one, a vector expanded to a matrix. `read_elements` hands
their elements over row by row like any others. Of a view only a part of which is wanted, or which is too large to be
held, a stream reads the same elements in the order of the file instead (`memory_order`): every count is the same, and
rows are then those of the memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from analyzers import limits
from analyzers.checkpoints.repository import RangeFile
from analyzers.checkpoints.tensor import Tensor

# Views up to a size (bytes, with what lies between their elements) are held in memory while they are read, so many at once. The
# size is one at which every plan for all of a tensor is a single span, so that no plan decides how it is read.
HELD_AT_ONCE = 8
HELD_BYTES = limits.STREAM_BYTES // HELD_AT_ONCE


def read_elements(file: RangeFile, tensor: Tensor, start: int, count: int, buffer: NDArray[np.uint8]) -> NDArray[Any]:
    """Elements ``start`` to ``start + count`` of a tensor, in row-major order of its shape.

    buffer: (>= count * itemsize,) uint8; the first bytes of it are filled. Returns (count,) unsigned integers, a view of them.
    Reads once, straight into the buffer, where the file has that order; else what lies between the elements too, in
    pieces of at most CHUNK_BYTES. Raises what the file's reads raise.
    """
    part = buffer[: count * tensor.itemsize]
    codes = part.view(f"<u{tensor.itemsize}")
    if tensor.strides is None:
        file.read_into(tensor.offset + start * tensor.itemsize, part.data)
        return codes
    shape, strides = _merged(tensor.shape, tensor.strides)
    for at, first, lengths in _boxes(shape, start, start + count):
        out = codes[at - start : at - start + _product(lengths)].reshape(lengths)
        _read_box(file, tensor.offset + tensor.itemsize * _inner(first, strides), strides, out)
    return codes


def gather(held: NDArray[np.uint8], tensor: Tensor, start: int, count: int, buffer: NDArray[np.uint8]) -> NDArray[Any]:
    """The same elements out of memory. held: the bytes from the tensor's first element to its last (`read_extent`)."""
    assert tensor.strides is not None
    codes = buffer[: count * tensor.itemsize].view(f"<u{tensor.itemsize}")
    shape, strides = _merged(tensor.shape, tensor.strides)
    for at, first, lengths in _boxes(shape, start, start + count):
        out = codes[at - start : at - start + _product(lengths)].reshape(lengths)
        np.copyto(out, _strided(held[tensor.itemsize * _inner(first, strides) :], lengths, strides, tensor.itemsize))
    return codes


def read_bytes(tensor: Tensor, start: int, count: int) -> int:
    """Bytes that `read_elements` reads at most, what lies between the elements included; of packed ones, the bytes they lie in."""
    if tensor.strides is None or count == 0:
        return -(-count * tensor.bits // 8)
    shape, strides = _merged(tensor.shape, tensor.strides)
    return sum(_extent(lengths, strides) for _, _, lengths in _boxes(shape, start, start + count)) * tensor.itemsize


def normal_strides(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...] | None:
    """Strides as `Tensor` has them: None for row-major without gaps, and 0 on every axis whose stride does not matter."""
    if 0 in shape:
        return None
    expected = 1
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length > 1 and stride != expected:
            return tuple(s if n > 1 else 0 for n, s in zip(shape, strides, strict=True))
        expected *= length
    return None


def as_read(tensor: Tensor, count: int) -> Tensor:
    """The tensor as a stream reads ``count`` elements of it: itself, or in `memory_order` where it is a view and cannot be held.

    Views that scales belong to keep their order whatever it costs: a scale is found by row and column.
    """
    if tensor.strides is None or tensor.scale is not None or is_held(tensor, count):
        return tensor
    return memory_order(tensor)


def is_held(tensor: Tensor, count: int) -> bool:
    """Whether a view is read at once and held: all of it is wanted, and it is small enough."""
    return tensor.strides is not None and count == tensor.elements and max(extent(tensor), tensor.nbytes) <= HELD_BYTES


def extent(tensor: Tensor) -> int:
    """Bytes from the first element of a tensor to its last, what lies between them included."""
    if tensor.strides is None:
        return tensor.nbytes
    return _extent(tensor.shape, tensor.strides) * tensor.itemsize


def memory_order(tensor: Tensor) -> Tensor:
    """The same elements as a tensor whose axes are sorted by stride: read from start to end it is read along the file."""
    if tensor.strides is None:
        return tensor
    axes = sorted((n, s) for n, s in zip(tensor.shape, tensor.strides, strict=True) if n > 1)
    axes.sort(key=lambda axis: -axis[1])
    shape, strides = tuple(n for n, _ in axes), tuple(s for _, s in axes)
    return replace(tensor, shape=shape, strides=normal_strides(shape, strides))


def read_extent(file: RangeFile, tensor: Tensor) -> NDArray[np.uint8]:
    """The bytes from the first element of a tensor to its last, in memory."""
    held = np.empty(extent(tensor), np.uint8)
    file.read_into(tensor.offset, held.data)
    return held


class CountedReads:
    """A `RangeFile` that counts its reads: a piece of a view may take several."""

    def __init__(self, file: RangeFile) -> None:
        self._file = file
        self._reads = 0

    @property
    def path(self) -> str:
        """As of the file."""
        return self._file.path

    @property
    def size(self) -> int:
        """As of the file."""
        return self._file.size

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """As of the file."""
        self._reads += 1
        self._file.read_into(offset, buffer)

    def close(self) -> None:
        """The file belongs to the checkpoint, which closes it."""

    def taken(self) -> int:
        """Reads since the last call."""
        reads, self._reads = self._reads, 0
        return reads


def _read_box(file: RangeFile, at: int, strides: tuple[int, ...], out: NDArray[Any]) -> None:
    """Fill ``out`` with the elements of a box whose first lies at byte ``at``; halved until it fits one read."""
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
    """Cut elements ``start`` to ``stop`` of a shape into boxes: the number of its first element, its index, and its lengths."""
    pending: list[tuple[tuple[int, ...], int, int, int]] = [((), 0, start, stop)] if start < stop else []
    while pending:
        index, base, start, stop = pending.pop()  # elements from ``base`` on have the leading ``index``
        axis = len(index)
        if axis == len(shape):
            yield base, index, (1,) * axis
            continue
        inner = _product(shape[axis + 1 :])
        first, last = -(-start // inner), stop // inner
        if first > last:  # within one index of this axis
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
    """The same elements in the same order with as few axes as can be; at least one."""
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


def _product(lengths: Sequence[int]) -> int:
    result = 1
    for length in lengths:
        result *= length
    return result
