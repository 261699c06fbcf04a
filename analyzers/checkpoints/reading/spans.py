"""Defines spans, consecutive elements of one tensor in one or several checkpoints, and the chunks in which they are read."""

from collections.abc import Sequence
from dataclasses import dataclass

from analyzers.checkpoints.elements import as_read, needed_bytes
from analyzers.checkpoints.tensor import Tensor
from analyzers.core import limits

# A tensor in each of several checkpoints, None for a checkpoint without it. The first is always present.
Sides = tuple[Tensor | None, ...]

# One thread's share of a large tensor, long enough that merging its counts costs little.
SPAN_BYTES = 16 << 20

ALIGNED = 64  # bytes; alignment of each side's part of a buffer


@dataclass(frozen=True, slots=True)
class Span:
    """``count`` consecutive elements from element ``start`` on, of one tensor per checkpoint.

    sides: in row-major order of their shapes, so a view that is read in memory order has the shape of that order. A side with fewer
    elements covers the first ones. column: in the whole tensor, of the first one of views that are a few columns of it.
    """

    sides: Sides
    start: int
    count: int
    column: int = 0

    @classmethod
    def of(cls, tensor: Tensor, start: int, count: int) -> "Span":
        """Return a span of a single checkpoint, in the order that reads the fewest bytes (`elements.as_read`)."""
        return cls((as_read(tensor, count),), start, count)

    @property
    def tensor(self) -> Tensor:
        """The tensor of the first checkpoint."""
        return first(self.sides)

    @property
    def nbytes(self) -> int:
        """Bytes to read from all sides, including those of scales."""
        return sum(self.bytes_of(side) for side in self.sides)

    def bytes_of(self, side: Tensor | None) -> int:
        """Bytes to read from one of its sides."""
        return 0 if side is None else needed_bytes(side, self.start, max(0, min(self.count, side.elements - self.start)))

    @property
    def widest_bytes(self) -> int:
        """Bytes of a buffer that fits the side with the most bits."""
        return self.count * widest_bits(self.sides) // 8 + 1


def first(sides: Sides) -> Tensor:
    """Return the tensor of the first checkpoint."""
    assert sides[0] is not None
    return sides[0]


def row_length(tensor: Tensor) -> int:
    """Return the number of elements in a row (the last axis); 1 for a scalar."""
    return tensor.shape[-1] if tensor.shape else 1


def whole_rows(elements: int, row: int) -> int:
    """Return the largest whole number of rows within ``elements``; if a row does not fit, a multiple of 1,024 elements."""
    if 0 < row <= elements:
        return elements // row * row
    return max(elements // 1024 * 1024, 1)


def whole_spans(groups: Sequence[Sides], undivided: bool = False) -> list[Span]:
    """Return spans that cover ``groups`` entirely, in the first checkpoint's file order, each a whole number of chunks, or a whole tensor.

    The length of a chunk depends on the tensors alone, not on their source, so sums over chunks are the same for any number of threads and
    any source. Several checkpoints are read in row-major order, so that their rows can be compared.
    """
    spans = []
    for sides in sorted(groups, key=file_order):
        elements, chunk = first(sides).elements, chunk_elements(sides)
        length = max(SPAN_BYTES * 8 // widest_bits(sides) // chunk, 1) * chunk if not undivided else max(elements, 1)
        for start in range(0, elements, length):
            count = min(length, elements - start)
            spans.append(Span.of(first(sides), start, count) if len(sides) == 1 else Span(sides, start, count))
    return spans


def file_order(sides: Sides) -> tuple[int, int]:
    """Sort by position in the files of the first checkpoint."""
    return first(sides).file, first(sides).offset


def chunk_elements(sides: Sides) -> int:
    """Return the elements of a chunk: whole rows if a row fits."""
    return whole_rows(chunk_bytes(len(sides)) * 8 // widest_bits(sides), row_length(first(sides)))


def widest_bits(sides: Sides) -> int:
    """Return the bits per element, as read, of the side that takes most."""
    return max(side.bits for side in sides if side is not None)


def chunk_bytes(checkpoints: int) -> int:
    """Return the bytes of a chunk of each of ``checkpoints`` checkpoints; the chunks of two threads must fit the memory limit."""
    return max(min(limits.CHUNK_BYTES, limits.STREAM_BYTES // (2 * checkpoints)) // ALIGNED * ALIGNED, ALIGNED)
