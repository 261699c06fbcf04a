"""Streams weights: spans of one or several checkpoints, read in chunks and processed in bounded memory.

Each thread reads a chunk into its own buffer and processes it while it is still in cache; while one thread counts, the others read.
At most ``STREAM_BYTES`` are in flight over all checkpoints together, regardless of the size of a tensor or model: the more
checkpoints, the shorter the chunks. Checkpoints may differ in files, dtypes, formats and sources.
"""

import os
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints.checkpoint import Checkpoint
from analyzers.checkpoints.elements import read_elements
from analyzers.checkpoints.in_memory import MemoryFile, MemoryRepository
from analyzers.checkpoints.local import is_local
from analyzers.checkpoints.reading.spans import ALIGNED, Span, chunk_bytes, chunk_elements, row_length, whole_rows, widest_bits
from analyzers.checkpoints.reading.worker_threads import Stopped, work_through
from analyzers.checkpoints.repository import RangeFile
from analyzers.checkpoints.tensor import Tensor
from analyzers.core import limits
from analyzers.core.errors import MantissaError
from analyzers.numerics.blas_threads import one_blas_thread
from analyzers.numerics.conversions import fp32_of
from analyzers.numerics.device import stream_buffer

# Below this average span size in local files, threads would mostly wait for each other: the interpreter's share of the work, which is
# serialized, takes longer than counting.
_SHARED_BYTES = 128 << 10
# Short spans of local files are passed to a thread this many at a time: each exchange between threads takes as long as counting one.
_BATCH = 64

# Tensors on a device are passed on in parts of so many values, which bounds the memory for masks of them. Smaller ones are read, and
# counted by compiled loops, before a device has begun.
_ON_DEVICE = 1 << 24
_READ = 1 << 20

# Threads that count at once; the others read, or wait for their turn.
_COUNTING = os.cpu_count() or 1
# Repositories over a network, of which each thread reads one after the other, that are read at once.
_REPOSITORIES = 3

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bit patterns of a part of a span, from element ``start`` of the tensor on. Read-only, and valid until the next chunk.

    sides: unsigned integers, per checkpoint, in the side's `Tensor.counted_as`: (n,) for the first one, (<= n,) for a side with fewer
    rows, None for a checkpoint without such a tensor. Tensors of torch where a stream leaves them on their device.
    """

    start: int
    sides: tuple[Any, ...]

    @property
    def codes(self) -> Any:
        """Bit patterns of the first checkpoint, (n,)."""
        assert self.sides[0] is not None
        return self.sides[0]


@dataclass(frozen=True, slots=True)
class Step(Generic[T]):
    """Progress of a stream: a finished span with its result, or (span None) only the amount read so far from all checkpoints."""

    span: Span | None
    result: T | None
    bytes_read: int
    requests: int


def stream(
    checkpoints: Sequence[Checkpoint],
    spans: Sequence[Span],
    work: Callable[[Span, Iterator[Chunk]], T],
    names: Sequence[str] = (),
    device: str = "",
    counted_on: str = "cpu",
) -> Iterator[Step[T]]:
    """Read ``spans`` and yield the result of ``work(span, chunks)`` for each span as it is finished, in no particular order.

    checkpoints: one for each side of the spans; names: of the checkpoints, prefixed to the errors of their reads.
    device: the kind of device of which large contiguous tensors of models in memory stay where they are, if all sides do; then ``work``
    runs on one thread, since each would need memory there. counted_on: the device to which ``work`` copies what is read. It runs on several
    threads concurrently, and reads no further than it consumes its chunks; chunks hold whole rows if a row is shorter than a chunk. Between
    results, and at least every `worker_threads.HEARTBEAT` seconds, a step without a span reports the amount read. Closing the generator
    stops the threads after their current chunk and closes the repositories; so does an error in a read or in ``work``, which is re-raised.
    Raises InvalidCheckpoint at the end if a local file has changed meanwhile.
    """
    reader = _Reader(checkpoints, names, device)
    number, longest = len(checkpoints), max((span.widest_bytes for span in spans), default=1)
    least = min(chunk_bytes(number), -(-longest // ALIGNED) * ALIGNED)
    remote = sum(not is_local(each.repository) and not isinstance(each.repository, MemoryRepository) for each in checkpoints)
    times = min(max(1, remote), _REPOSITORIES)  # each keeps as many reads in flight as it benefits from
    merged = [checkpoint.parallel_reads for checkpoint in checkpoints if len(checkpoint.parts) > 1]
    wanted = min(merged) if merged else max(checkpoint.parallel_reads for checkpoint in checkpoints) * times
    local = all(is_local(checkpoint.repository) for checkpoint in checkpoints)
    if device or (local and sum(span.widest_bytes for span in spans) < _SHARED_BYTES * len(spans)):
        wanted = 1
    threads = max(1, min(wanted, len(spans), limits.STREAM_BYTES // (number * least)))
    size = max(min(limits.STREAM_BYTES // (threads * number), longest) // ALIGNED * ALIGNED, least)

    def worker() -> Callable[[Sequence[Span]], list[T]]:
        buffers = stream_buffer(size * number, counted_on).reshape(number, size)

        def count(batch: Sequence[Span]) -> list[T]:
            done = []
            for span in batch:
                with closing(reader.chunks(span, buffers)) as chunks:  # its turn ends if ``work`` fails
                    done.append(work(span, chunks))
            return done

        return count

    def cancel() -> None:  # wakes reads that wait for the Hub
        for checkpoint in checkpoints:
            checkpoint.repository.close()

    batches = list(_batches(spans)) if local else [[span] for span in spans]
    with one_blas_thread(), closing(work_through(batches, threads, worker, reader.stop, cancel)) as results:
        for item in results:
            for span, result in [(None, None)] if item is None else zip(*item, strict=True):
                yield Step(span, result, reader.bytes_read, reader.requests)


def _batches(spans: Sequence[Span]) -> Iterator[list[Span]]:
    """Group consecutive spans that are short together."""
    batch: list[Span] = []
    nbytes = 0
    for span in spans:
        batch.append(span)
        nbytes += span.widest_bytes
        if nbytes >= _SHARED_BYTES or len(batch) == _BATCH:
            yield batch
            batch, nbytes = [], 0
    if batch:
        yield batch


def _counted(side: Tensor | None, codes: NDArray[Any] | None, part: slice) -> NDArray[Any] | None:
    """Return the patterns of a part of what was read, in the side's `Tensor.counted_as`."""
    if side is None or codes is None:
        return None
    return fp32_of(codes[part], side.dtype) if side.converted else codes[part]


class _Reader:
    """Reads the chunks of spans and counts the reads, for several threads. stop: makes threads stop before their next read."""

    def __init__(self, checkpoints: Sequence[Checkpoint], names: Sequence[str], device: str) -> None:
        self._checkpoints, self._names, self._device = checkpoints, names, device
        self.stop = threading.Event()
        self.bytes_read = self.requests = 0
        self._adding, self._turns = threading.Lock(), threading.Semaphore(_COUNTING)

    def chunks(self, span: Span, buffers: NDArray[np.uint8]) -> Generator[Chunk, None, None]:
        """Yield the chunks of ``span``. buffers: (checkpoints, bytes), owned by the calling thread.

        Each chunk is yielded once few enough threads count: many would spend more time on taking turns in the interpreter.
        """
        sides, end = span.sides, span.start + span.count
        held = [self._held(i, side, span) for i, side in enumerate(sides)]
        devices = {codes.device for codes in held if codes is not None}  # models may be split over GPUs differently
        if len(devices) == 1 and all((codes is None) == (side is None) for codes, side in zip(held, sides, strict=True)):
            length = whole_rows(_ON_DEVICE, row_length(span.tensor))
            for start in range(0, span.count, length):
                codes_of = tuple(None if codes is None else codes[start : start + length] for codes in held)
                with self._turns:
                    yield Chunk(span.start + start, codes_of)
                self._add(sum(0 if codes is None else codes.nbytes for codes in codes_of), len(codes_of))
            return
        chunk = block = chunk_elements(sides)
        present = [side for side in sides if side is not None]
        if len(sides) > 1 and any(side.strides is not None for side in present):
            # The byte ranges of parts of a view overlap, so the buffer is filled as far as possible at a time.
            block = max(buffers.shape[1] * 8 // widest_bits(sides) // chunk, 1) * chunk
        for first in range(span.start, end, block):
            last = min(first + block, end)
            read = [self._read(i, side, first, last, buffer) for i, (side, buffer) in enumerate(zip(sides, buffers, strict=True))]
            for start in range(first, last, chunk):
                part = slice(start - first, min(start + chunk, last) - first)
                # Converted before it is the turn of this thread to count
                pieces = tuple(_counted(side, codes, part) for side, codes in zip(sides, read, strict=True))
                with self._turns:
                    yield Chunk(start, pieces)

    def _held(self, i: int, side: Tensor | None, span: Span) -> Any:
        """The patterns of a span of a side where they are; None where they are to be read."""
        file = self._checkpoints[i].files[side.file] if side is not None else None
        if side is None or not isinstance(file, MemoryFile) or side.strides is not None or side.stored is not None or side.converted:
            return None
        if span.count < _READ or side.bits not in (8, 16, 32) or side.elements < span.start + span.count:
            return None
        return file.patterns(side.offset + span.start * side.itemsize, span.count, self._device)

    def _read(self, i: int, side: Tensor | None, start: int, stop: int, buffer: NDArray[np.uint8]) -> NDArray[Any] | None:
        """Read the patterns of elements ``start`` to ``stop`` of a side, or to its end if it has fewer. Errors name the side."""
        if side is None:
            return None
        count = max(0, min(stop, side.elements) - start)
        try:
            return self._fetch(i, side, start, count, buffer)
        except MantissaError as error:
            raise (error.about(self._names[i]) if self._names else error) from None

    def _fetch(self, i: int, tensor: Tensor, first: int, count: int, into: NDArray[np.uint8]) -> NDArray[Any]:
        """Read elements of a tensor of a checkpoint, and tally the reads."""
        file, nbytes, reads = self._checkpoints[i].files[tensor.file], 0, 0
        decoded = None if tensor.stored is None else tensor.stored.file

        def read_stored(stored: RangeFile, offset: int, piece: memoryview) -> None:
            nonlocal nbytes, reads
            if self.stop.is_set():
                raise Stopped
            stored.read_into(offset, piece)
            nbytes += len(piece)
            reads += 1

        def read_into(offset: int, piece: memoryview) -> None:
            if decoded is not None:
                decoded.read_into(offset, piece, read_stored)
            else:
                read_stored(file, offset, piece)

        read_box = None if decoded is None else partial(decoded.read_box, read_stored=read_stored)
        codes = read_elements(read_into, tensor, first, count, into, read_box)
        self._add(nbytes if tensor.stored is not None else codes.nbytes, reads)
        return codes

    def _add(self, nbytes: int, requests: int) -> None:
        with self._adding:
            self.bytes_read += nbytes
            self.requests += requests
