"""Several checkpoints as one stream: the same elements of each, read together in chunks, in bounded memory.

The counterpart of `stream` for groups of tensors that `align` identified as the same parameter. The sides may differ in
files, dtypes, formats and sources. Elements are in row-major order on every side or, if a span says so, in the memory order
that all sides share; a view is never read in any other order. At most ``STREAM_BYTES`` are in flight over all sides
together: the more checkpoints, the shorter the chunks.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from analyzers import limits
from analyzers.checkpoints.align import Alignment, PairedSpan
from analyzers.checkpoints.checkpoint import Checkpoint
from analyzers.checkpoints.elements import memory_order
from analyzers.checkpoints.local import LocalRepository
from analyzers.checkpoints.paired_plan import ALIGNED, chunk_bytes, chunk_elements, widest_bits
from analyzers.checkpoints.side import Codes, Side, Source
from analyzers.checkpoints.workers import Stopped, Tally, work_through
from analyzers.errors import InvalidCheckpoint

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PairedChunk:
    """A part of a span, from element ``start`` of the group on: the patterns of each side, valid until the next chunk.

    codes: unsigned integers of the base, then of each tuned checkpoint, in the side's `Tensor.counted_as`: (n,) for the base,
    (<= n,) for a side with fewer rows, None for a side without such a tensor. Read-only.
    """

    start: int
    codes: tuple[NDArray[Any] | None, ...]


@dataclass(frozen=True, slots=True)
class PairedStep(Generic[T]):
    """Progress of a stream: a finished span with its result, or only (span None) the amount read so far from all sides."""

    span: PairedSpan | None
    result: T | None
    bytes_read: int
    requests: int


def stream_aligned(
    checkpoints: Sequence[Checkpoint],
    alignment: Alignment,
    spans: Sequence[PairedSpan],
    work: Callable[[PairedSpan, Iterator[PairedChunk]], T],
    names: Sequence[str] = (),
) -> Iterator[PairedStep[T]]:
    """Read ``spans`` of all ``checkpoints`` and yield ``work(span, chunks)`` of each as it is finished, in no particular order.

    checkpoints: the base, then the tuned ones, as passed to `align`; names: used in errors, default: their refs.
    ``work`` runs on several threads concurrently and must consume its chunks; chunks hold whole rows if a row is shorter
    than a chunk. Between results, and at least every `workers.HEARTBEAT` seconds, a step without a span reports the amount read.
    Closing the generator stops the threads after their current chunk and closes every repository; so does an error in ``work`` or
    in a read, which is re-raised; errors of reads begin with the name of their side. Raises InvalidCheckpoint at the end if a
    local file has changed meanwhile.

    Local files are read by the thread that processes them; all others by at most HUB_PARALLEL_READS additional threads, the sides
    of a chunk concurrently.
    """
    reading = _Reading(checkpoints, alignment, names or [checkpoint.ref for checkpoint in checkpoints], spans)

    def worker() -> Callable[[PairedSpan], T]:
        buffer = np.empty(reading.block_bytes * len(checkpoints), dtype=np.uint8)  # pages are committed only when written
        return lambda span: work(span, reading.chunks(span, buffer))

    try:
        with closing(work_through(spans, reading.threads, worker, reading.stop, reading.cancel)) as finished:
            for found in finished:
                span, result = found if found is not None else (None, None)
                yield PairedStep(span, result, reading.tally.bytes, reading.tally.requests)
    finally:
        reading.readers.shutdown()
    reading.confirm()


class _Reading:
    """Shared state of the threads of one paired stream.

    threads: number of worker threads; block_bytes: the most that a worker holds of one side at once; readers: the threads that
    read remote sides.
    """

    def __init__(self, checkpoints: Sequence[Checkpoint], alignment: Alignment, names: Sequence[str], spans: Sequence[PairedSpan]) -> None:
        self._groups = alignment.groups
        self._checkpoints = checkpoints
        self.stop = threading.Event()
        self.tally = Tally()
        self.threads = max(1, min(_threads(checkpoints), len(spans)))
        each = limits.STREAM_BYTES // (self.threads * len(checkpoints)) // ALIGNED * ALIGNED
        self.block_bytes = max(each, chunk_bytes(len(checkpoints)))
        self._remote = [not _is_local(checkpoint) for checkpoint in checkpoints]
        readers = max(1, min(limits.HUB_PARALLEL_READS, self.threads * sum(self._remote)))
        self.readers = ThreadPoolExecutor(readers, thread_name_prefix="paired-read")
        self._sources = [Source(each.files, name, self.tally, self.stop) for each, name in zip(checkpoints, names, strict=True)]

    def chunks(self, span: PairedSpan, buffer: NDArray[np.uint8]) -> Iterator[PairedChunk]:
        """The chunks of ``span``; buffer: (block_bytes of each checkpoint,), owned by the calling thread."""
        group = self._groups[span.group]
        step = chunk_elements(group)
        block = max(1, self.block_bytes * 8 // widest_bits(group) // step) * step
        sides = self._sides(span, step, block, buffer)
        at_once = [i for i, side in enumerate(sides) if side is not None and side.at_once]
        in_steps = [i for i, side in enumerate(sides) if side is not None and not side.at_once]
        end = span.start + span.count
        for first in range(span.start, end, block):
            last = min(first + block, end)
            whole = self._read(sides, at_once, first, last - first)
            for start in range(first, last, step):
                stop = min(start + step, last)
                codes = self._read(sides, in_steps, start, stop - start)
                codes |= {i: found[start - first : stop - first] for i, found in whole.items()}
                yield PairedChunk(start, tuple(codes.get(i) for i in range(len(sides))))

    def confirm(self) -> None:
        """Raise InvalidCheckpoint, naming the side, if a local file has changed since it was opened."""
        for checkpoint, source in zip(self._checkpoints, self._sources, strict=True):
            try:
                checkpoint.confirm()
            except InvalidCheckpoint as error:
                raise error.about(source.name) from None

    def cancel(self) -> None:
        """Wake threads that wait for the Hub or for each other."""
        for checkpoint in self._checkpoints:
            checkpoint.repository.close()
        self.readers.shutdown(wait=False, cancel_futures=True)

    def _sides(self, span: PairedSpan, step: int, block: int, buffer: NDArray[np.uint8]) -> list[Side | None]:
        sides: list[Side | None] = []
        for i, (source, tensor) in enumerate(zip(self._sources, self._groups[span.group].sides, strict=True)):
            if tensor is None:
                sides.append(None)
                continue
            own = buffer[i * self.block_bytes : (i + 1) * self.block_bytes]
            count = max(0, min(span.count, tensor.elements - span.start))
            stored = memory_order(tensor) if span.in_memory else tensor
            sides.append(Side(source, stored, span.start, count, step, own))
        return sides

    def _read(self, sides: Sequence[Side | None], numbers: Sequence[int], start: int, count: int) -> dict[int, Codes]:
        """Read the same elements of the sides ``numbers``: remote sides concurrently, local ones in this thread."""
        if self.stop.is_set():
            raise Stopped
        asked, local = {}, {}
        for i in numbers:
            side = sides[i]
            assert side is not None
            if self._remote[i]:
                asked[i] = self.readers.submit(side.read, start, count)
            else:
                local[i] = side.read(start, count)
        try:
            return local | {i: future.result() for i, future in asked.items()}
        except CancelledError:
            raise Stopped from None


def _is_local(checkpoint: Checkpoint) -> bool:
    return isinstance(checkpoint.repository, LocalRepository)


def _threads(checkpoints: Sequence[Checkpoint]) -> int:
    """Number of worker threads: as many as keep the remote reads of their chunks in flight, or as local files benefit from."""
    remote = sum(not _is_local(checkpoint) for checkpoint in checkpoints)
    local = max((checkpoint.parallel_reads for checkpoint in checkpoints if _is_local(checkpoint)), default=2)
    wanted = max(local, -(-limits.HUB_PARALLEL_READS // remote)) if remote else local
    return max(1, min(wanted, limits.STREAM_BYTES // (len(checkpoints) * chunk_bytes(len(checkpoints)))))
