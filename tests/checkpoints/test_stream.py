"""A stream is the whole file, whatever the chunks, spans and threads; errors arrive; nothing is left running."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from analyzers.checkpoints import Checkpoint, Chunk, Span, Step, Tensor, row_length, stream, whole_spans
from analyzers.core import limits
from analyzers.core.errors import InvalidCheckpoint
from tests.checkpoints.counting_file import MemoryFile

# The function of the same name stands before the module in its package.
spans_module = import_module("analyzers.checkpoints.reading.spans")
stream_module = import_module("analyzers.checkpoints.reading.stream")

DTYPES = {"I64": 8, "F32": 4, "BF16": 2, "F8_E4M3": 1}


@dataclass
class FakeRepository:
    """What a stream asks of a repository. ``closed`` is set by close(), which also lets reads that wait go on."""

    parallel_reads: int
    closed: threading.Event = field(default_factory=threading.Event)
    ref: str = "fake"
    commit: str = "0"
    public: bool = False
    range_requests: int = 100

    @property
    def files(self) -> dict[str, int]:
        return {}

    def open(self, path: str) -> MemoryFile:
        raise AssertionError(path)

    def close(self) -> None:
        self.closed.set()


def checkpoint(tensors: list[tuple[str, tuple[int, ...]]], threads: int = 3, files: int = 2) -> tuple[Checkpoint, list[bytes]]:
    """A checkpoint of random bytes in memory; dtype and shape of each tensor, dealt out to ``files``."""
    rng = np.random.default_rng(len(tensors))
    data = [bytearray(rng.bytes(7)) for _ in range(files)]
    found = []
    for i, (dtype, shape) in enumerate(tensors):
        file = i % files
        size = int(np.prod(shape)) * DTYPES[dtype]
        found.append(Tensor(f"t{i}", dtype, shape, file, len(data[file]), size, "other", None, False))
        data[file] += rng.bytes(size)
    contents = [bytes(each) for each in data]
    repository = FakeRepository(threads)
    opened = tuple(MemoryFile(each) for each in contents)
    return Checkpoint("fake", "0", False, opened, tuple(found), None, None, (), threads, repository), contents


def collect(span: Span, chunks: Iterator[Chunk]) -> list[tuple[int, bytes, int]]:
    """Start, bytes and item size of each chunk, copied: a chunk is valid until the next."""
    return [(c.start, c.codes.tobytes(), c.codes.dtype.itemsize) for c in chunks]


def finished(steps: Iterator[Step[list[tuple[int, bytes, int]]]]) -> list[tuple[Span, list[tuple[int, bytes, int]]]]:
    return [(s.span, s.result) for s in steps if s.span is not None and s.result is not None]


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHUNK_BYTES", 256)


@contextmanager
def no_threads_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


shapes = st.lists(st.integers(0, 40), max_size=3).map(tuple)
described = st.lists(st.tuples(st.sampled_from(sorted(DTYPES)), shapes), min_size=1, max_size=6)


@given(described, st.integers(1, 5000), st.integers(1, 5), st.integers(8, 3000))
def test_a_stream_is_the_whole_file(tensors: list[tuple[str, tuple[int, ...]]], chunk_bytes: int, threads: int, span_bytes: int) -> None:
    source, contents = checkpoint(tensors, threads)
    with pytest.MonkeyPatch.context() as patch, no_threads_left():
        patch.setattr(limits, "CHUNK_BYTES", chunk_bytes)
        patch.setattr(spans_module, "SPAN_BYTES", span_bytes)
        spans = whole_spans([(each,) for each in source.tensors])
        steps = list(stream([source], spans, collect))
    rebuilt = [bytearray(len(each)) for each in contents]
    written = [np.zeros(len(each), dtype=np.uint8) for each in contents]
    for span, chunks in finished(iter(steps)):
        tensor, at = span.tensor, span.start
        for start, data, itemsize in chunks:
            assert start == at and itemsize == tensor.itemsize and data
            assert len(data) <= max(chunk_bytes, 64)
            first = tensor.offset + start * itemsize
            rebuilt[tensor.file][first : first + len(data)] = data
            written[tensor.file][first : first + len(data)] += 1
            at += len(data) // itemsize
        assert at == span.start + span.count
    for tensor in source.tensors:
        part = slice(tensor.offset, tensor.offset + tensor.nbytes)
        assert rebuilt[tensor.file][part] == contents[tensor.file][part]
        assert (written[tensor.file][part] == 1).all()
    assert isinstance(source.repository, FakeRepository) and not source.repository.closed.is_set()
    total = sum(t.nbytes for t in source.tensors)
    assert sum(int(w.sum()) for w in written) == total
    if spans:
        assert steps[-1].bytes_read == total
        assert steps[-1].requests == sum(len(f.reads) for f in source.files if isinstance(f, MemoryFile))


def test_chunks_and_spans_hold_whole_rows_where_rows_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans_module, "SPAN_BYTES", 4000)
    monkeypatch.setattr(limits, "CHUNK_BYTES", 1000)
    source, _ = checkpoint([("F32", (100, 25)), ("F32", (3, 3000)), ("BF16", ())])
    spans = whole_spans([(each,) for each in source.tensors])
    assert {s.start % 25 for s in spans if s.tensor.name == "t0"} == {0}
    assert all(s.count <= 1000 for s in spans if s.tensor.name == "t1")
    for span, chunks in finished(stream([source], spans, collect)):
        for start, data, _ in chunks:
            if span.tensor.name == "t0":
                assert start % 25 == 0 and len(data) % 100 == 0
    assert [row_length(t) for t in source.tensors] == [25, 3000, 1]


class Failing(MemoryFile):
    """Fails at the nth read."""

    def __init__(self, data: bytes, at: int) -> None:
        super().__init__(data)
        self.at = at

    def read_into(self, offset: int, buffer: memoryview) -> None:
        if len(self.reads) >= self.at:
            raise InvalidCheckpoint("the file ends here")
        super().read_into(offset, buffer)


@pytest.mark.parametrize("at", [0, 5])
def test_an_error_of_a_read_arrives_and_closes_the_repository(at: int) -> None:
    source, contents = checkpoint([("F32", (50, 64))] * 4, files=1)
    source = replace(source, files=(Failing(contents[0], at),))
    with no_threads_left(), pytest.raises(InvalidCheckpoint, match="ends here"):
        list(stream([source], whole_spans([(each,) for each in source.tensors]), collect))
    assert isinstance(source.repository, FakeRepository) and source.repository.closed.is_set()


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_error_of_the_work_arrives(error: type[BaseException]) -> None:
    source, _ = checkpoint([("F32", (50, 64))] * 4)

    def work(span: Span, chunks: Iterator[Chunk]) -> int:
        for chunk in chunks:
            if chunk.start > 100:
                raise error
        return 1

    with no_threads_left(), pytest.raises(error):
        list(stream([source], whole_spans([(each,) for each in source.tensors]), work))
    assert isinstance(source.repository, FakeRepository) and source.repository.closed.is_set()


class Blocked(MemoryFile):
    """Waits in every read until the repository is closed, as reads of a dead connection do."""

    closed: threading.Event

    def read_into(self, offset: int, buffer: memoryview) -> None:
        if self.closed.wait(200):
            raise InvalidCheckpoint("closed")
        raise AssertionError("nobody closed the repository")


def test_progress_comes_while_reads_take_long_and_closing_wakes_them() -> None:
    source, contents = checkpoint([("F32", (50, 64))] * 4, files=1)
    blocked = Blocked(contents[0])
    assert isinstance(source.repository, FakeRepository)
    blocked.closed = source.repository.closed
    source = replace(source, files=(blocked,))
    start = time.monotonic()
    with no_threads_left():
        steps = stream([source], whole_spans([(each,) for each in source.tensors]), collect)
        step = next(steps)
        assert (step.span, step.result, step.bytes_read) == (None, None, 0)
        steps.close()  # type: ignore[attr-defined]
    assert time.monotonic() - start < 150  # or the read would have ended by itself


@pytest.mark.parametrize(("chunk_bytes", "parallel", "in_flight"), [(4096, 50, 1000), (1000, 2, 64_000)])
def test_buffers_stay_within_the_limit(chunk_bytes: int, parallel: int, in_flight: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STREAM_BYTES", in_flight)
    monkeypatch.setattr(limits, "CHUNK_BYTES", chunk_bytes)
    source, _ = checkpoint([("F32", (30, 64))] * 20, parallel)
    made: list[int] = []

    def counted(size: int, device: str) -> NDArray[np.uint8]:
        made.append(size)
        return np.empty(size, dtype=np.uint8)

    monkeypatch.setattr(stream_module, "stream_buffer", counted)
    list(stream([source], whole_spans([(each,) for each in source.tensors]), collect))
    assert made and sum(made) <= in_flight
    assert len(made) <= parallel
