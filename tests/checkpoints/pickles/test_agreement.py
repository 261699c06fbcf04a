"""What is read of a file of torch.save is what torch.load reads: names, shapes, dtypes and every byte."""

import struct
import tracemalloc
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from analyzers.checkpoints.formats.pickles.torch_file import read_pickled
from analyzers.checkpoints.local import LocalRepository
from analyzers.core.errors import InvalidCheckpoint, LimitExceeded
from tests.checkpoints.counting_file import MemoryFile
from tests.checkpoints.pickles.pickled_files import DTYPES, contents, expected, loaded, saved


def _assert_same(data: bytes) -> None:
    file = MemoryFile(data, "pytorch_model.bin")
    theirs = {name: tensor for name, tensor in loaded(data, weights_only=False).items() if isinstance(tensor, torch.Tensor)}
    ours = dict(contents(file, read_pickled(file)))
    assert list(ours) == list(theirs)
    assert ours == expected(theirs)


def test_every_dtype() -> None:
    for dtype in DTYPES:
        values = torch.arange(48, dtype=torch.uint8).view(dtype) if dtype != torch.bool else torch.arange(48) % 3 == 0
        _assert_same(saved({"flat": values, "matrix": values[:6].reshape(2, 3), "scalar": values[1], "empty": values[:0].reshape(0, 3)}))


@pytest.mark.parametrize("protocol", [1, 2, 3, 4, 5])
def test_every_protocol(protocol: int) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.LSTM(4, 2))
    other = {"é.\u4e00": torch.ones(2), "step": 3, "text": "x" * 300, "none": None, "big": 1 << 70, "set": {1, 2}, "raw": b"\xff"}
    _assert_same(saved(model.state_dict() | other, protocol=protocol))


_DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.uint8])


@st.composite
def _views(draw: st.DrawFn) -> torch.Tensor:
    """A view into 400 elements: any shape, strides and offset that fit."""
    dtype = draw(_DTYPES)
    base = torch.arange(400 * dtype.itemsize).to(torch.uint8).view(dtype)
    shape = draw(st.lists(st.integers(0, 6), max_size=4))
    room = 399
    strides = []
    for length in shape:
        stride = draw(st.integers(0, room // max(length - 1, 1)))
        room -= stride * max(length - 1, 0)
        strides.append(stride)
    return base.as_strided(shape, strides, draw(st.integers(0, room)))


@given(st.lists(_views(), min_size=1, max_size=4))
def test_random_views(views: list[torch.Tensor]) -> None:
    _assert_same(saved({f"v{i}": view for i, view in enumerate(views)}))


def test_a_file_beyond_4_gib(tmp_path: Path) -> None:
    """The 64-bit fields: torch writes only the frame, the storages are a hole in the file."""
    with torch.serialization.skip_data():
        state = {"a": torch.empty(5 << 28, dtype=torch.float32), "b": torch.empty(3), "c": torch.empty(2, 2)}
        torch.save(state, tmp_path / "pytorch_model.bin")
    repository = LocalRepository(tmp_path)
    file = repository.open("pytorch_model.bin")
    header = read_pickled(file)
    few = read_pickled(file, 2)
    assert header == few and file.size > 5 << 30
    assert [tensor.name for tensor in header.tensors] == ["a", "b", "c"]
    with (tmp_path / "pytorch_model.bin").open("r+b") as writable:
        for tensor, values in zip(header.tensors[1:], (torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0, 7.0])), strict=True):
            writable.seek(tensor.start)
            writable.write(values.numpy().tobytes())
    theirs = torch.load(tmp_path / "pytorch_model.bin", mmap=True, weights_only=True)
    assert theirs["b"].tolist() == [1, 2, 3] and theirs["c"].tolist() == [[4, 5], [6, 7]]


def test_reads_are_few_and_small() -> None:
    file = MemoryFile(saved({f"model.layers.{i}.weight": torch.zeros(40_000) for i in range(60)}), "pytorch_model.bin")
    assert len(read_pickled(file, 8).tensors) == 60
    assert len(file.reads) <= 12 and sum(length for _, length in file.reads) < 300_000
    file.reads.clear()
    read_pickled(file)
    assert len(file.reads) >= 60


def test_an_entry_that_is_not_where_the_directory_says_is_found_where_it_is_looked_up() -> None:
    data = bytearray(saved({f"t{i}": torch.zeros(40_000) for i in range(9)}))
    last = max(read_pickled(MemoryFile(bytes(data))).tensors, key=lambda tensor: tensor.start)
    data[data.rindex(b"PK\3\4", 0, last.start) + 28] ^= 1  # the length of a field before the data
    for checked in (None, 2):
        with pytest.raises(InvalidCheckpoint, match="not where the directory says"):
            read_pickled(MemoryFile(bytes(data)), checked)


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    data = saved({f"t{i}": torch.zeros(1) for i in range(900)})
    for name, value, said in (
        ("checkpoints.formats.pickles.torch_file.PICKLE_BYTES", 1000, " a pickle .*more than 1,000"),
        ("core.limits.PICKLE_OPCODES", 10, "too many operations for its size"),
        ("core.limits.PICKLE_DEPTH", 1, "deeper than 1 levels"),
        ("core.limits.TENSORS", 10, "more than 10 tensors"),
        ("core.limits.TENSOR_NAME_LENGTH", 1, "one by more than 1 characters"),
        ("checkpoints.formats.pickles.torch_file.ZIP_DIRECTORY_BYTES", 1000, "a zip directory that is too long"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"analyzers.{name}", value)
            with pytest.raises(LimitExceeded, match=said):
                read_pickled(MemoryFile(data))


def test_views_that_amount_to_many_times_the_file_are_refused() -> None:
    with pytest.raises(LimitExceeded, match="8 times its own bytes"):
        read_pickled(MemoryFile(saved({"a": torch.ones(5_000).expand(4_000, 5_000)})))


@pytest.mark.parametrize("protocol", [1, 2, 4])
def test_the_layout_before_torch_1_6(protocol: int) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    matrix = torch.arange(48.0).view(6, 8)
    views = {"t": matrix.t(), "stepped": matrix[::2, 1::3], "empty": matrix[:0], "half": matrix.half(), "counts": torch.arange(5)}
    data = saved(model.state_dict() | views | {"step": 3}, protocol=protocol, zipped=False)
    _assert_same(data)
    assert read_pickled(MemoryFile(data), 2) == read_pickled(MemoryFile(data))


def test_a_zip_directory_that_states_gigabytes_is_refused_before_it_is_read(tmp_path: Path) -> None:
    nbytes, stated = 3 << 30, 2 << 30
    with (tmp_path / "pytorch_model.bin").open("wb") as file:
        file.write(b"PK\3\4")
        file.seek(nbytes - 22)
        file.write(struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, stated, nbytes - 22 - stated, 0))
    tracemalloc.start()
    with pytest.raises(LimitExceeded, match="zip directory that is too long"):
        read_pickled(LocalRepository(tmp_path).open("pytorch_model.bin"))
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()
