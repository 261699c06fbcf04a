"""What is read of a file of torch.save is what torch.load reads: names, shapes, dtypes and every byte."""

import io
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from analyzers.checkpoints.formats.pickles.torch_file import read_pickled
from analyzers.checkpoints.local import LocalRepository
from analyzers.core.errors import InvalidCheckpoint, LimitExceeded, UnsupportedWeights
from tests.checkpoints.counting_file import MemoryFile
from tests.checkpoints.pickles.pickled_files import DTYPES, UNTYPED, contents, expected, loaded, saved

LAYOUTS = [pytest.param(True, id="zip"), pytest.param(False, id="legacy")]


def _assert_same(data: bytes, *, weights_only: bool = True, inside: str | None = None) -> None:
    file = MemoryFile(data, "pytorch_model.bin")
    theirs = loaded(data, weights_only=weights_only)
    if inside is not None:
        theirs = theirs[inside]
    theirs = {name: tensor for name, tensor in theirs.items() if isinstance(tensor, torch.Tensor)}
    ours = dict(contents(file, read_pickled(file)))
    assert list(ours) == list(theirs)
    assert ours == expected(theirs)


@pytest.mark.parametrize("zipped", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(dtype: torch.dtype, zipped: bool) -> None:
    values = torch.arange(48, dtype=torch.uint8).view(dtype) if dtype != torch.bool else torch.arange(48) % 3 == 0
    state = {"flat": values, "matrix": values[:6].reshape(2, 3), "scalar": values[1], "empty": values[:0].reshape(0, 3)}
    if zipped or dtype not in UNTYPED:
        _assert_same(saved(state, zipped=zipped))
        return
    file = MemoryFile(saved(state, zipped=False))
    assert dict(contents(file, read_pickled(file))) == expected(state)


@pytest.mark.parametrize("zipped", LAYOUTS)
@pytest.mark.parametrize("protocol", [1, 2, 3, 4, 5])
def test_every_protocol(protocol: int, zipped: bool) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.LSTM(4, 2))
    state: dict[str, Any] = dict(model.state_dict())
    state |= {
        "é.\u4e00": torch.ones(2),
        "step": 3,
        "rate": 0.1,
        "text": "x" * 300,
        "none": None,
        "big": 1 << 70,
        "set": {1, 2},
        "raw": b"\xff",
    }
    _assert_same(saved(state, zipped=zipped, protocol=protocol), weights_only=False)
    _assert_same(saved(model.state_dict(), zipped=zipped, protocol=protocol), weights_only=False)


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


@given(st.lists(_views(), min_size=1, max_size=4), st.booleans())
def test_random_views(views: list[torch.Tensor], zipped: bool) -> None:
    _assert_same(saved({f"v{i}": view for i, view in enumerate(views)}, zipped=zipped))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (torch.ones(3).to_sparse(), "_rebuild_sparse_tensor"),
        (torch.ones(3, device="meta"), "_rebuild_meta_tensor_no_storage"),
        (torch.ones(3, dtype=torch.complex64).conj(), "conjugated"),
        (torch.ones(3, dtype=torch.complex128), "torch.complex128"),
    ],
)
def test_tensors_that_are_no_plain_memory_are_refused(value: torch.Tensor, said: str) -> None:
    with pytest.raises(UnsupportedWeights, match=said):
        read_pickled(MemoryFile(saved({"a": value})))


def test_packed_fp4_counts_numbers() -> None:
    header = read_pickled(MemoryFile(saved({"a": torch.zeros(3, 4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)})))
    assert header.tensors[0][1:3] == ("F4", (3, 8)) and header.tensors[0].stop - header.tensors[0].start == 12


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


@pytest.mark.parametrize("zipped", LAYOUTS)
def test_reads_are_few_and_small(zipped: bool) -> None:
    state = {f"model.layers.{i}.weight": torch.zeros(40_000) for i in range(60)}
    data = saved(state, zipped=zipped)
    file = MemoryFile(data, "pytorch_model.bin")
    assert len(read_pickled(file, 8).tensors) == 60
    assert len(file.reads) <= 12 and sum(length for _, length in file.reads) < 300_000
    everything = MemoryFile(data)
    read_pickled(everything)
    assert len(everything.reads) >= 60


def test_what_is_looked_up_where_only_some_are() -> None:
    data = bytearray(saved({f"t{i}": torch.zeros(40_000) for i in range(9)}, zipped=False))
    header = read_pickled(MemoryFile(bytes(data)))
    data[header.tensors[-1].start - 8] ^= 1
    last = sorted(header.tensors, key=lambda tensor: tensor.start)[-1]
    data = bytearray(saved({f"t{i}": torch.zeros(40_000) for i in range(9)}, zipped=False))
    data[last.start - 8] ^= 1
    for checked in (None, 2):
        with pytest.raises(InvalidCheckpoint, match="the length that its tensors state"):
            read_pickled(MemoryFile(bytes(data)), checked)


def test_long_pickles_of_the_old_layout_are_read_in_growing_pieces() -> None:
    state = {f"model.{'x' * 60}.{i}": torch.zeros(1) for i in range(3_000)}
    file = MemoryFile(saved(state, zipped=False))
    assert len(read_pickled(file, 2).tensors) == 3_000
    assert len(file.reads) < 10


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:

    zipped, old = saved({f"t{i}": torch.zeros(1) for i in range(900)}), saved({f"t{i}": torch.zeros(1) for i in range(900)}, zipped=False)
    for name, value, said, files in (
        ("checkpoints.formats.pickles.torch_file.PICKLE_BYTES", 1000, " a pickle .*(more than 1,000|too long)", (zipped, old)),
        ("core.limits.PICKLE_OPCODES", 10, "too many operations for its size", (zipped, old)),
        ("core.limits.PICKLE_DEPTH", 1, "deeper than 1 levels", (zipped, old)),
        ("core.limits.TENSORS", 10, "more than 10 tensors", (zipped, old)),
        ("core.limits.TENSOR_NAME_LENGTH", 1, "one by more than 1 characters", (zipped, old)),
        ("checkpoints.formats.pickles.torch_file.ZIP_DIRECTORY_BYTES", 1000, "a zip directory that is too long", (zipped,)),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"analyzers.{name}", value)
            for data in files:
                with pytest.raises(LimitExceeded, match=said):
                    read_pickled(MemoryFile(data))


def test_torch_reads_the_attackers_own_sound_files() -> None:
    """The corpus of attacks is made by a writer of its own: what it makes without a trick is what torch takes."""
    from tests.attacks.pickles import SOUND, SOUND_LEGACY, zipped

    for data in (zipped(SOUND), SOUND_LEGACY):
        assert torch.load(io.BytesIO(data), weights_only=True)["weight"].tolist() == [0.0] * 4


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
