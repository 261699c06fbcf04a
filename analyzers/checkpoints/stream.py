"""Weights as a stream: spans of tensors, of one checkpoint or of several at once, read in chunks and processed in bounded memory.

Each thread reads a chunk into its own buffer and processes it while it is still in cache; while one thread counts, the others read.
At most ``STREAM_BYTES`` are in flight over all checkpoints together, regardless of the size of a tensor or model: the more
checkpoints, the shorter the chunks. Several checkpoints may differ in files, dtypes, formats and sources.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from analyzers import limits
from analyzers.checkpoints.align import Alignment, PairedSpan
from analyzers.checkpoints.checkpoint import Checkpoint
from analyzers.checkpoints.decode import ScaledCodes, scale_bits, stored_bytes
from analyzers.checkpoints.elements import as_read, memory_order, read_elements
from analyzers.checkpoints.local import LocalRepository
from analyzers.checkpoints.tensor import Tensor
from analyzers.checkpoints.workers import Stopped, Tally, work_through
from analyzers.errors import MantissaError

# One thread's share of a large tensor, long enough that merging its counts costs little.
SPAN_BYTES = 16 << 20

# Below this average size of a span of local files, threads would mostly wait for each other: the interpreter's share of the
# work, which is serialized, then takes longer than counting.
_SHARED_BYTES = 128 << 10

# Values with scales decoded at a time. Their patterns (512 KiB) are counted while still in a core's cache.
_DECODED = 1 << 17

_ALIGNED = 64  # bytes, of each side's part of a buffer


@dataclass(frozen=True, slots=True)
class Span:
    """``count`` consecutive elements of a tensor, from element ``start`` on."""

    tensor: Tensor
    start: int
    count: int

    @property
    def nbytes(self) -> int:
        """Bytes to read, including scales."""
        return stored_bytes(self.tensor, self.start, self.count)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a span. ``codes``: (n,) bit patterns as unsigned integers, in `Tensor.counted_as`, valid until the next chunk."""

    start: int
    codes: NDArray[Any]


@dataclass(frozen=True, slots=True)
class PairedChunk:
    """A part of a span, from element ``start`` of the group on: the patterns of each side, valid until the next chunk.

    codes: unsigned integers of the base, then of each tuned checkpoint, in the side's `Tensor.counted_as`: (n,) for the base,
    (<= n,) for a side with fewer rows, None for a side without such a tensor. Read-only.
    """

    start: int
    codes: tuple[NDArray[Any] | None, ...]


S = TypeVar("S", Span, PairedSpan)
T = TypeVar("T")
Sides = Sequence[Tensor | None]


@dataclass(frozen=True, slots=True)
class Step(Generic[S, T]):
    """Progress of a stream: a finished span with its result, or only (span None) the amount read so far from all sides."""

    span: S | None
    result: T | None
    bytes_read: int
    requests: int


PairedStep = Step[PairedSpan, T]


def stream(checkpoint: Checkpoint, spans: Sequence[Span], work: Callable[[Span, Iterator[Chunk]], T]) -> Iterator[Step[Span, T]]:
    """Read ``spans`` and yield ``work(span, chunks)`` of each as it is finished, in no particular order.

    A view too large to hold reaches ``work`` in memory order, with the shape it has in that order; in every other case, and in
    every step, the tensor is that of the checkpoint.
    ``work`` runs on several threads concurrently, and reads no further than it consumes its chunks; chunks hold whole rows if a row is
    shorter than a chunk. Between results, and at least every `workers.HEARTBEAT` seconds, a step without a span reports the
    amount read. Closing the generator stops the threads after their current chunk and closes the repository; so does an
    error in a read or in ``work``, which is re-raised. Raises InvalidCheckpoint at the end if a local file has changed meanwhile.
    """

    def sides(span: Span) -> Sides:
        return [as_read(span.tensor, span.count)]

    def of_one(span: Span, chunks: Iterator[PairedChunk]) -> T:
        tensor = as_read(span.tensor, span.count)
        return work(replace(span, tensor=tensor), (Chunk(chunk.start, codes) for chunk in chunks if (codes := chunk.codes[0]) is not None))

    return _Stream([checkpoint], [None], sides).run(spans, of_one)


def stream_aligned(
    checkpoints: Sequence[Checkpoint],
    alignment: Alignment,
    spans: Sequence[PairedSpan],
    work: Callable[[PairedSpan, Iterator[PairedChunk]], T],
    names: Sequence[str] = (),
) -> Iterator[Step[PairedSpan, T]]:
    """`stream` of several checkpoints: the same elements of each, read together.

    checkpoints: the base, then the tuned ones, as passed to `align`; names: errors of reads begin with the name of their side, by
    default its ref. Elements are in row-major order on every side or, if a span says so, in the memory order that all sides share.
    """

    def sides(span: PairedSpan) -> Sides:
        group = alignment.groups[span.group]
        return [memory_order(side) if side is not None and span.in_memory else side for side in group.sides]

    return _Stream(checkpoints, names or [checkpoint.ref for checkpoint in checkpoints], sides).run(spans, work)


def row_length(tensor: Tensor) -> int:
    """Elements in a row (the last axis); 1 for a scalar."""
    return tensor.shape[-1] if tensor.shape else 1


def whole_rows(elements: int, row: int) -> int:
    """The largest whole number of rows within ``elements``; if a row does not fit, a multiple of 1,024 elements."""
    if 0 < row <= elements:
        return elements // row * row
    return max(elements // 1024 * 1024, 1)


def whole_spans(tensors: Sequence[Tensor]) -> list[Span]:
    """Spans that cover ``tensors`` entirely, in file order, each a whole number of chunks."""
    return [
        Span(tensor, start, count)
        for tensor in sorted(tensors, key=lambda t: (t.file, t.offset))
        for start, count in cut_into_spans([tensor])
    ]


def whole_paired_spans(alignment: Alignment) -> list[PairedSpan]:
    """Spans that cover every group entirely, in the base's file order, each a whole number of chunks."""
    return [
        PairedSpan(number, start, count)
        for number in in_file_order(alignment)
        for start, count in cut_into_spans(alignment.groups[number].sides)
    ]


def in_file_order(alignment: Alignment) -> list[int]:
    """The numbers of the groups, in the order of the base's files."""
    groups = alignment.groups
    return sorted(range(len(groups)), key=lambda i: (groups[i].base.file, groups[i].base.offset))


def cut_into_spans(sides: Sides) -> Iterator[tuple[int, int]]:
    """First element and number of elements of each span that covers the first of ``sides``.

    Each is a whole number of chunks. The length of a chunk depends on the sides alone, not on their source, so sums over chunks are
    the same for any threads and sources.
    """
    elements, chunk = _base(sides).elements, chunk_elements(sides)
    span = max(SPAN_BYTES * 8 // widest_bits(sides) // chunk, 1) * chunk
    for start in range(0, elements, span):
        yield start, min(span, elements - start)


def chunk_elements(sides: Sides) -> int:
    """Elements of a chunk: whole rows if a row fits."""
    return whole_rows(_chunk_bytes(len(sides)) * 8 // widest_bits(sides), row_length(_base(sides)))


def widest_bits(sides: Sides) -> int:
    """Bits per element, with scales, of the side that takes most."""
    return max(side.bits + scale_bits(side) for side in sides if side is not None)


def _base(sides: Sides) -> Tensor:
    assert sides[0] is not None
    return sides[0]


def _chunk_bytes(checkpoints: int) -> int:
    """Bytes of a chunk of each of ``checkpoints``, such that the chunks of at least two threads fit the memory limit."""
    return max(min(limits.CHUNK_BYTES, limits.STREAM_BYTES // (2 * checkpoints)) // _ALIGNED * _ALIGNED, _ALIGNED)


class _Stream(Generic[S]):
    """One stream. names: of the checkpoints, for errors; sides: the tensor of each checkpoint that a span covers, as it is read."""

    def __init__(self, checkpoints: Sequence[Checkpoint], names: Sequence[str | None], sides: Callable[[S], Sides]) -> None:
        self._checkpoints, self._names = checkpoints, names
        self._sides: Callable[[S], Sides] = sides
        self._stop, self._tally = threading.Event(), Tally()

    def run(self, spans: Sequence[S], work: Callable[[S, Iterator[PairedChunk]], T]) -> Iterator[Step[S, T]]:
        """See `stream`."""
        sizes = [span.count * widest_bits(self._sides(span)) // 8 + 1 for span in spans]
        number, most = len(self._checkpoints), min(_chunk_bytes(len(self._checkpoints)), -(-max(sizes, default=1) // _ALIGNED) * _ALIGNED)
        wanted = max(each.parallel_reads for each in self._checkpoints)
        local = all(isinstance(each.repository, LocalRepository) for each in self._checkpoints)
        if local and sum(sizes) < _SHARED_BYTES * len(spans):
            wanted = 1
        threads = max(1, min(wanted, len(spans), limits.STREAM_BYTES // (number * most)))
        own = max(min(limits.STREAM_BYTES // (threads * number), max(sizes, default=1)) // _ALIGNED * _ALIGNED, most)

        def worker() -> Callable[[S], T]:
            buffers = np.empty(own * number, dtype=np.uint8).reshape(number, own)  # pages are committed only when written
            return lambda span: work(span, self._chunks(span, buffers))

        def cancel() -> None:  # wakes reads that wait for the Hub
            for checkpoint in self._checkpoints:
                checkpoint.repository.close()

        with closing(work_through(spans, threads, worker, self._stop, cancel)) as finished:
            for found in finished:
                span, result = found if found is not None else (None, None)
                yield Step(span, result, self._tally.bytes, self._tally.requests)
        for i, checkpoint in enumerate(self._checkpoints):
            self._about(i, checkpoint.confirm)

    def _chunks(self, span: S, buffers: NDArray[np.uint8]) -> Iterator[PairedChunk]:
        """The chunks of ``span``; buffers: (checkpoints, bytes), owned by the calling thread."""
        sides, end = self._sides(span), span.start + span.count
        chunk = piece = block = chunk_elements(sides)
        present = [side for side in sides if side is not None]
        if len(sides) > 1 and any(
            side.strides is not None for side in present
        ):  # the byte ranges of parts of a view overlap: as much as possible at a time
            block = max(buffers.shape[1] * 8 // widest_bits(sides) // chunk, 1) * chunk
        if any(side.scale is not None for side in present):
            piece = whole_rows(_DECODED, row_length(present[0]))
        for first in range(span.start, end, block):
            last = min(first + block, end)
            read = [self._read(i, side, first, last, buffer) for i, (side, buffer) in enumerate(zip(sides, buffers, strict=True))]
            for start in range(first, last, piece):
                part = slice(start - first, min(start + piece, last) - first)
                yield PairedChunk(start, tuple(None if codes is None else codes[part] for codes in read))

    def _read(self, i: int, side: Tensor | None, start: int, stop: int, buffer: NDArray[np.uint8]) -> "NDArray[Any] | ScaledCodes | None":
        """The patterns of elements ``start`` to ``stop`` of a side, or to its end if it has fewer."""
        if side is None:
            return None

        def fetch(tensor: Tensor, first: int, count: int, into: NDArray[np.uint8]) -> NDArray[Any]:
            file = self._checkpoints[i].files[tensor.file]

            def read_into(offset: int, piece: memoryview) -> None:
                if self._stop.is_set():
                    raise Stopped
                file.read_into(offset, piece)
                self._tally.add(0, 1)

            codes = read_elements(read_into, tensor, first, count, into)
            self._tally.add(codes.nbytes, 0)
            return codes

        count = max(0, min(stop, side.elements) - start)
        if side.scale is not None:
            return self._about(i, lambda: ScaledCodes(side, start, count, buffer, fetch))
        return self._about(i, lambda: fetch(side, start, count, buffer))

    def _about(self, i: int, call: Callable[[], T]) -> T:
        """The result of ``call``, whose errors begin with the name of a checkpoint."""
        try:
            return call()
        except MantissaError as error:
            name = self._names[i]
            raise (error if name is None else error.about(name)) from None
