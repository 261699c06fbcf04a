"""Weights as a stream: spans of tensors, read in chunks and processed by a few threads in bounded memory.

Each thread reads a chunk into its own buffer and processes it while it is still in cache; while one thread counts,
the others read. At most ``STREAM_BYTES`` are in flight, regardless of the size of a tensor or model.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from analyzers import limits
from analyzers.checkpoints.checkpoint import Checkpoint
from analyzers.checkpoints.decode import decoded, stored_bytes
from analyzers.checkpoints.elements import HELD_AT_ONCE, CountedReads, as_read, gather, is_held, read_elements, read_extent
from analyzers.checkpoints.local import LocalRepository
from analyzers.checkpoints.tensor import Tensor
from analyzers.checkpoints.workers import Stopped, Tally, work_through

T = TypeVar("T")

# One thread's share of a large tensor, long enough that merging its counts costs little. With many threads the share is a
# quarter of that, so that all end at about the same time.
SPAN_BYTES = 64 << 20

# Below this average size of a span of a local file, threads would mostly wait for each other: the interpreter's share of the
# work, which is serialized, then takes longer than counting.
SHARED_BYTES = 128 << 10


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
class Step(Generic[T]):
    """Progress of a stream: a finished span with its result, or only (span None) the amount read so far."""

    span: Span | None
    result: T | None
    bytes_read: int
    requests: int


def row_length(tensor: Tensor) -> int:
    """Elements in a row (the last axis); 1 for a scalar."""
    return tensor.shape[-1] if tensor.shape else 1


def whole_spans(tensors: Sequence[Tensor], threads: int = 1, chunk_bytes: int = limits.CHUNK_BYTES) -> list[Span]:
    """Spans that cover ``tensors`` entirely, in file order; cut at row ends if a row is shorter than a chunk.

    chunk_bytes: of the repository to be read. Spans are whole numbers of its chunks, so that chunk boundaries within a tensor,
    and therefore sums over chunks, do not depend on how spans are cut.
    """
    spans: list[Span] = []
    for tensor in sorted(tensors, key=lambda t: (t.file, t.offset)):
        row = row_length(tensor)
        chunk = whole_rows(max(min(chunk_bytes, limits.STREAM_BYTES), 64) * 8 // tensor.bits, row)
        span = whole_rows(SPAN_BYTES // (4 if threads > 8 else 1) * 8 // tensor.bits, row)
        step = span // chunk * chunk or span
        spans += [Span(tensor, start, min(step, tensor.elements - start)) for start in range(0, tensor.elements, step)]
    return spans


def whole_rows(elements: int, row: int) -> int:
    """The largest whole number of rows within ``elements``; if a row does not fit, a multiple of 1,024 elements."""
    if 0 < row <= elements:
        return elements // row * row
    return max(elements // 1024 * 1024, 1)


def stream(checkpoint: Checkpoint, spans: Sequence[Span], work: Callable[[Span, Iterator[Chunk]], T]) -> Iterator[Step[T]]:
    """Read ``spans`` and yield ``work(span, chunks)`` of each as it is finished, in no particular order.

    A view too large to hold reaches ``work`` in memory order, with the shape it has in that order; in every other case, and in
    every step, the tensor is that of the checkpoint.
    ``work`` runs on several threads concurrently and must consume its chunks; chunks hold whole rows if a row is
    shorter than a chunk. Between results, and at least every `workers.HEARTBEAT` seconds, a step without a span reports the
    amount read. Closing the generator stops the threads after their current chunk and closes the repository; so does an
    error in a read or in ``work``, which is re-raised. Raises InvalidCheckpoint at the end if a local file has changed meanwhile.
    """
    stop = threading.Event()
    read = Tally()
    views = threading.BoundedSemaphore(HELD_AT_ONCE)
    chunk_bytes = max(min(checkpoint.repository.chunk_bytes, limits.STREAM_BYTES), 64)
    threads = max(1, min(checkpoint.parallel_reads, len(spans), limits.STREAM_BYTES // chunk_bytes))
    if isinstance(checkpoint.repository, LocalRepository) and sum(span.nbytes for span in spans) < SHARED_BYTES * len(spans):
        threads = 1

    def fetch(tensor: Tensor, start: int, count: int, buffer: NDArray[np.uint8]) -> NDArray[Any]:
        if stop.is_set():
            raise Stopped
        file = CountedReads(checkpoint.files[tensor.file])
        codes = read_elements(file, tensor, start, count, buffer)
        read.add(codes.nbytes, file.taken())
        return codes

    def chunks(span: Span, buffer: NDArray[np.uint8]) -> Iterator[Chunk]:
        tensor = span.tensor
        step = whole_rows(chunk_bytes * 8 // tensor.bits, row_length(tensor))
        if tensor.scale is not None:
            for start, values in decoded(tensor, span.start, span.count, step, buffer, fetch):
                yield Chunk(start, values)
            return
        file = CountedReads(checkpoint.files[tensor.file])
        held = read_extent(file, tensor) if is_held(tensor, span.count) else None
        for start in range(span.start, span.start + span.count, step):
            if stop.is_set():
                raise Stopped
            count = min(step, span.start + span.count - start)
            codes = read_elements(file, tensor, start, count, buffer) if held is None else gather(held, tensor, start, count, buffer)
            read.add(codes.nbytes, file.taken())
            yield Chunk(start, codes)

    def worker() -> Callable[[Span], T]:
        buffer = np.empty(chunk_bytes, dtype=np.uint8)  # pages are committed only when written

        def count(span: Span) -> T:
            seen = replace(span, tensor=as_read(span.tensor, span.count))
            with views if is_held(span.tensor, span.count) else nullcontext():
                return work(seen, chunks(seen, buffer))

        return count

    # Closing the repository wakes reads that wait for the Hub.
    with closing(work_through(spans, threads, worker, stop, checkpoint.repository.close)) as finished:
        for found in finished:
            span, result = found if found is not None else (None, None)
            yield Step(span, result, read.bytes, read.requests)
    checkpoint.confirm()
