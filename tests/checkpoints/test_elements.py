"""Elements of views: any part, any order, bounded memory, and the same multiset in the order of the memory."""

import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from analyzers.checkpoints import Checkpoint, Chunk, Span, Tensor, stream, whole_spans
from analyzers.checkpoints.elements import HELD_BYTES, memory_order, read_elements
from analyzers.checkpoints.tensor import normal_strides
from analyzers.core import limits
from tests.checkpoints.counting_file import MemoryFile
from tests.checkpoints.test_stream import FakeRepository

DATA = np.random.default_rng(3).bytes(8 * 600 + 3)
DTYPES = {"U8": 1, "BF16": 2, "F32": 4, "F64": 8}


def view(dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 3) -> Tensor:
    nbytes = int(np.prod(shape, dtype=np.int64)) * DTYPES[dtype]
    return Tensor("t", dtype, shape, 0, offset, nbytes, "other", None, False, strides=normal_strides(shape, strides))


def slow(tensor: Tensor, data: bytes = DATA) -> NDArray[np.generic]:
    """Element by element."""
    strides = tensor.strides
    if strides is None:
        strides = tuple(int(np.prod(tensor.shape[axis + 1 :], dtype=np.int64)) for axis in range(len(tensor.shape)))
    values = []
    for index in np.ndindex(*tensor.shape):
        at = tensor.offset + tensor.itemsize * sum(i * s for i, s in zip(index, strides, strict=True))
        values.append(int.from_bytes(data[at : at + tensor.itemsize], "little"))
    return np.array(values, f"<u{tensor.itemsize}")


@st.composite
def views(draw: st.DrawFn) -> Tensor:
    shape, strides, room = [], [], 599
    for _ in range(draw(st.integers(0, 4))):
        length = draw(st.integers(0, 6))
        stride = draw(st.integers(0, room // max(length - 1, 1)))
        room -= stride * max(length - 1, 0)
        shape.append(length)
        strides.append(stride)
    order = draw(st.permutations(range(len(shape))))
    return view(draw(st.sampled_from(sorted(DTYPES))), tuple(shape[i] for i in order), tuple(strides[i] for i in order))


@given(views(), st.data(), st.sampled_from([1, 8, 64, 4 << 20]))
def test_any_part_of_any_view(tensor: Tensor, data: st.DataObject, window: int) -> None:
    expected = slow(tensor)
    start = data.draw(st.integers(0, tensor.elements))
    count = data.draw(st.integers(0, tensor.elements - start))
    buffer = np.zeros(count * tensor.itemsize + 5, np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "CHUNK_BYTES", window)
        file = MemoryFile(DATA)
        codes = read_elements(file.read_into, tensor, start, count, buffer)
        assert all(length <= max(window, tensor.itemsize) for _, length in file.reads) or tensor.strides is None
    assert codes.tobytes() == expected[start : start + count].tobytes()
    assert not count or codes.base is not None  # in the caller's buffer


@given(views())
def test_the_order_of_the_memory_holds_the_same_elements(tensor: Tensor) -> None:
    sorted_by_stride = memory_order(tensor)
    assert sorted_by_stride.elements == tensor.elements
    assert sorted(slow(sorted_by_stride).tolist()) == sorted(slow(tensor).tolist())
    if sorted_by_stride.strides is not None:
        assert sorted(sorted_by_stride.strides, reverse=True) == list(sorted_by_stride.strides)


@pytest.mark.parametrize(
    ("shape", "strides", "normal"),
    [
        ((), (), None),
        ((3, 4), (4, 1), None),
        ((3, 4), (1, 3), (1, 3)),
        ((1, 4), (99, 1), None),
        ((4, 1), (1, 99), None),
        ((0, 4), (7, 7), None),
        ((3, 1, 4), (8, 5, 1), (8, 0, 1)),
        ((3,), (0,), (0,)),
    ],
)
def test_normal_strides(shape: tuple[int, ...], strides: tuple[int, ...], normal: tuple[int, ...] | None) -> None:
    assert normal_strides(shape, strides) == normal


def _counted(tensor: Tensor, data: bytes, spans: list[Span]) -> tuple[NDArray[np.int64], int, int, list[tuple[int, ...]]]:
    """Bytes of all elements read, by value; bytes and requests told; shapes that the work saw."""
    file = MemoryFile(data)
    source = Checkpoint("fake", "0", False, (file,), (tensor,), None, None, (), 4, FakeRepository(4))
    seen = []

    def work(span: Span, chunks: Iterator[Chunk]) -> NDArray[np.int64]:
        seen.append(span.tensor.shape)
        return sum((np.bincount(chunk.codes.view(np.uint8), minlength=256) for chunk in chunks), np.zeros(256, np.int64))

    steps = list(stream([source], spans, work))
    assert all(step.span is None or step.span.tensor.name == tensor.name for step in steps)
    total = sum((step.result for step in steps if step.result is not None), np.zeros(256, np.int64))
    assert steps[-1].requests == len(file.reads)
    return total, steps[-1].bytes_read, sum(length for _, length in file.reads), seen


@pytest.mark.parametrize("rows", [500, 4_200])
def test_a_stream_reads_a_transposed_tensor_once(rows: int) -> None:
    data = np.random.default_rng(rows).bytes(rows * 1_024 * 2)
    tensor = Tensor("t", "BF16", (1_024, rows), 0, 0, len(data), "other", None, False, strides=(1, 1_024))
    total, told, read, seen = _counted(tensor, data, whole_spans([(tensor,)]))
    assert (total == np.bincount(np.frombuffer(data, np.uint8), minlength=256)).all()
    assert told == read == len(data)
    held = len(data) <= HELD_BYTES
    assert seen == [(1_024, rows) if held else (rows, 1_024)] * len(seen)


def test_a_part_of_a_transposed_tensor_costs_no_more_than_itself() -> None:
    data = np.random.default_rng(5).bytes(1_000 * 1_000)
    tensor = Tensor("t", "U8", (1_000, 1_000), 0, 0, len(data), "other", None, False, strides=(1, 1_000))
    _, told, read, _ = _counted(tensor, data, [Span.of(tensor, 5_000, 2_000), Span.of(tensor, 90_000, 1_000)])
    assert told == read == 3_000


def test_memory_does_not_grow_with_gaps_or_repeats() -> None:
    data = bytes(30_000_000)
    gaps = Tensor("t", "U8", (3_000, 100), 0, 0, 300_000, "other", None, False, strides=(10_000, 3))
    repeats = Tensor("t", "U8", (300, 1_000), 0, 0, 300_000, "other", None, False, strides=(0, 30_000))
    for tensor in (gaps, repeats):
        buffer = np.empty(tensor.nbytes, np.uint8)
        tracemalloc.start()
        try:
            read_elements(MemoryFile(data).read_into, tensor, 0, tensor.elements, buffer)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 2 * limits.CHUNK_BYTES
