"""Reads a tensor's elements from its file, including strided ones.

Pickled checkpoints store views: a transposed weight, a slice of a fused one, a vector expanded to a matrix. `read_elements`
returns their elements in row-major order like any others. If only part of a view is wanted, or the view is too large to hold in
memory, a stream reads the same elements in file order instead (`memory_order`): all counts stay the same, but rows are
then rows of the memory layout.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from analyzers.checkpoints.repository import RangeFile
from analyzers.checkpoints.tensor import Tensor, normal_strides
from analyzers.core import limits

# Views of up to this size, gaps between their elements included, are read whole, in one chunk: a plan for a whole tensor of this size
# is a single span, so the plan cannot change how the view is read.
HELD_BYTES = limits.STREAM_BYTES // 8

# Columns of a transposed matrix that are copied at once: of each, cache lines are read, which displace each other if the columns lie a
# power of two apart; and rows from which on this pays.
_COLUMNS, _ROWS = 16, 64

# Fills a buffer with the bytes of a file from an offset on.
ReadInto = Callable[[int, memoryview], None]
Axes = tuple[int, ...]
# Fills an array with the elements from a byte offset on that lie at strides of elements; returns False if it cannot.
ReadBox = Callable[[int, Axes, NDArray[Any]], bool]


def read_elements(
    read_into: ReadInto, tensor: Tensor, start: int, count: int, buffer: NDArray[np.uint8], read_box: ReadBox | None = None
) -> NDArray[Any]:
    """Read elements ``start`` to ``start + count`` of a tensor, in row-major order of its shape.

    buffer: (>= count * itemsize,) uint8, filled from its start. Returns (count,) unsigned integers, a view of the buffer.
    A contiguous range is read in one read, directly into the buffer. Otherwise gaps between the elements are read too, in
    pieces of at most CHUNK_BYTES, unless ``read_box`` reads a box. Raises what ``read_into`` raises.
    """
    part = buffer[: count * tensor.itemsize]
    codes = part.view(f"<u{tensor.itemsize}")
    if tensor.strides is None and count:  # an empty tensor may begin at the end of the file
        read_into(tensor.offset + start * tensor.itemsize, part.data)
    if tensor.strides is None:
        return codes
    done = 0
    for at, lengths, strides in _boxes(*_merged(tensor.shape, tensor.strides), start, start + count):
        out = codes[done : done + prod(lengths)].reshape(lengths)
        if read_box is None or not read_box(tensor.offset + tensor.itemsize * at, strides, out):
            _read_box(read_into, tensor.offset + tensor.itemsize * at, strides, out)
        done += out.size
    return codes


def file_of(files: Sequence[RangeFile], tensor: Tensor) -> RangeFile:
    """Return the file that the elements of a tensor are read from: one of ``files``, or one that decodes them."""
    decoded = None if tensor.stored is None else tensor.stored.file
    return files[tensor.file] if decoded is None else decoded


def read_bytes(tensor: Tensor, start: int, count: int) -> int:
    """Bound the bytes that `read_elements` reads, including gaps; of a quantized tensor those of its codes, scales and other parts."""
    if count == 0:
        return 0
    runs = [(start, count)]
    if tensor.strides is not None:
        boxes = _boxes(*_merged(tensor.shape, tensor.strides), start, start + count)
        runs = [(at, _extent(lengths, strides)) for at, lengths, strides in boxes]
    if tensor.stored is None:
        return sum(length for _, length in runs) * tensor.itemsize
    first = (tensor.offset - tensor.stored.offset) // tensor.itemsize
    return sum(tensor.stored.nbytes(first + at, first + at + length) for at, length in runs)


def needed_bytes(tensor: Tensor, start: int, count: int) -> int:
    """Return the bytes of ``count`` elements as stored, with their share of scales and other parts, without gaps."""
    if tensor.stored is None or not count:
        return count * tensor.itemsize
    if tensor.strides is None:
        return read_bytes(tensor, start, count)
    return -(-tensor.stored.nbytes(0, tensor.stored.elements) * count // tensor.stored.elements)


def as_read(tensor: Tensor, count: int) -> Tensor:
    """Return the tensor as a stream reads ``count`` elements of it: in `memory_order` for part of a view or a large one, else unchanged."""
    held = count == tensor.elements and max(extent(tensor), tensor.nbytes) <= HELD_BYTES
    return tensor if held else memory_order(tensor)


def extent(tensor: Tensor) -> int:
    """Return the bytes from the first element of a tensor to its last, including gaps."""
    if tensor.strides is None:
        return tensor.nbytes
    return _extent(tensor.shape, tensor.strides) * tensor.itemsize


def memory_order(tensor: Tensor) -> Tensor:
    """Sort the axes of a tensor by stride, so that reading its elements in order reads the file sequentially."""
    if tensor.strides is None:
        return tensor
    axes = sorted((n, s) for n, s in zip(tensor.shape, tensor.strides, strict=True) if n > 1)
    axes.sort(key=lambda axis: -axis[1])
    shape, strides = tuple(n for n, _ in axes), tuple(s for _, s in axes)
    return replace(tensor, shape=shape, strides=normal_strides(shape, strides))


def _read_box(read_into: ReadInto, at: int, strides: Axes, out: NDArray[Any]) -> None:
    """Fill ``out`` with the elements of a box whose first element is at byte ``at``; boxes are halved until each fits one read."""
    size = _extent(out.shape, strides) * out.itemsize
    if size <= max(limits.CHUNK_BYTES, out.itemsize):
        held = np.empty(size, np.uint8)
        read_into(at, held.data)
        whole, length = held[: size // out.itemsize * out.itemsize].view(out.dtype), out.shape[-1]
        stored = as_strided(whole, out.shape, [stride * out.itemsize for stride in strides], writeable=False)
        step = _COLUMNS if strides[-1] > 1 and out.size >= _ROWS * length else length
        for first in range(0, length, step):
            np.copyto(out[..., first : first + step], stored[..., first : first + step])
        return
    axis = max(range(out.ndim), key=lambda i: (out.shape[i] - 1) * strides[i])
    half = out.shape[axis] // 2
    before = (slice(None),) * axis
    _read_box(read_into, at, strides, out[(*before, slice(half))])
    _read_box(read_into, at + half * strides[axis] * out.itemsize, strides, out[(*before, slice(half, None))])


def _boxes(shape: Axes, strides: Axes, start: int, stop: int, at: int = 0) -> Iterator[tuple[int, Axes, Axes]]:
    """Split elements ``start`` to ``stop`` of a view into boxes: place of the first element, lengths and strides. at: place of the view."""
    if start >= stop:
        return
    inner = prod(shape[1:])
    first, last = -(-start // inner), stop // inner

    def part(index: int) -> Iterator[tuple[int, Axes, Axes]]:
        """Split what is wanted of one index of the first axis."""
        begin, end = max(start - index * inner, 0), min(stop - index * inner, inner)
        return _boxes(shape[1:], strides[1:], begin, end, at + index * strides[0])

    if start < first * inner:
        yield from part(first - 1)
    if first < last:
        yield at + first * strides[0], (last - first, *shape[1:]), strides
    if first <= last < -(-stop // inner):
        yield from part(last)


def _merged(shape: Axes, strides: Axes) -> tuple[Axes, Axes]:
    """Merge the axes of a view: the same elements in the same order with as few axes as possible, at least one."""
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


def _extent(shape: Axes, strides: Axes) -> int:
    return sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True)) + 1
