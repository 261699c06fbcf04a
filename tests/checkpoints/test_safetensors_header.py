"""Header validation: what we accept, the safetensors library accepts and reads alike; what it writes, we accept."""

import json
import tracemalloc
from itertools import product
from math import prod
from typing import Any

import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st

from analyzers.checkpoints.formats.safetensors_header import FIRST_READ, Header, read_header
from analyzers.checkpoints.tensor import DTYPE_BITS
from analyzers.core.errors import InvalidCheckpoint, LimitExceeded, MantissaError
from tests.attacks.headers import ATTACKS, Attack, described, framed, tensor
from tests.checkpoints.counting_file import MemoryFile

_deserialize: Any = safetensors.deserialize  # has no types of its own


def _assert_same(header: Header, data: bytes) -> None:
    """The library reads the file too, and finds the same tensors with the same bytes."""
    theirs = {name: (info["dtype"], tuple(info["shape"]), bytes(info["data"])) for name, info in _deserialize(data)}
    ours = {name: (dtype, shape, data[start:stop]) for name, dtype, shape, start, stop, _ in header.tensors}
    assert ours == theirs


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_attack_is_refused_in_one_short_sentence(attack: Attack) -> None:
    file = MemoryFile(attack.data, "weights/model.safetensors")
    tracemalloc.start()
    try:
        with pytest.raises((InvalidCheckpoint, LimitExceeded)) as caught:
            read_header(file)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 300_000_000
    assert "weights/model.safetensors" in str(caught.value)
    assert len(str(caught.value)) < 400
    if attack.ours_alone:
        _deserialize(attack.data)
    else:
        with pytest.raises(safetensors.SafetensorError):
            _deserialize(attack.data)


_ENTRY = b'{"dtype":"F32","shape":[1],"data_offsets":[0,4]%b}'


def test_what_the_library_loads_of_irregular_headers_is_read_alike() -> None:
    for header in (b' \n\t{"a":%b}' % (_ENTRY % b""), b'{"a":%b}' % (_ENTRY % b',"more":{"x":[-0,1.5,null]}')):
        data = framed(header, bytes(4))
        _assert_same(read_header(MemoryFile(data)), data)


@pytest.mark.parametrize(
    "header",
    [
        b'{"a":%b,"a":%b}' % (_ENTRY % b"", (_ENTRY % b"").replace(b"F32", b"I32")),
        b'{"a":%b,"\\u0061":%b}' % (_ENTRY % b"", _ENTRY % b""),
        b'{"a":%b}' % (_ENTRY % b',"stride":1,"stride":2'),
        b'{"__metadata__":{"x":"1","x":"2"},"a":%b}' % (_ENTRY % b""),
    ],
)
def test_names_that_occur_twice_are_refused_though_the_library_takes_the_last(header: bytes) -> None:
    data = framed(header, bytes(4))
    assert len(_deserialize(data)) == 1
    with pytest.raises(InvalidCheckpoint, match="occurs twice"):
        read_header(MemoryFile(data))


_NUMBERS = st.one_of(st.integers(0, 6), st.sampled_from([-1, 8, 2**31, 2**63, 2**64, 1.0, True, None, "1"]))
_TENSORS = st.fixed_dictionaries(
    {
        "dtype": st.one_of(st.sampled_from(sorted(DTYPE_BITS)), st.sampled_from(["F31", "f32", 3, None])),
        "shape": st.lists(_NUMBERS, max_size=3),
        "data_offsets": st.lists(_NUMBERS, min_size=1, max_size=3),
    }
)


@given(st.dictionaries(st.text(max_size=3), _TENSORS, max_size=3), st.integers(0, 12), st.integers(0, 3))
def test_accepted_random_header_is_read_alike(described_tensors: dict[str, Any], size: int, spaces: int) -> None:
    data = framed(json.dumps(described_tensors).encode() + b" " * spaces, bytes(size))
    _assert_alike_or_refused(data)


@st.composite
def _plausible(draw: st.DrawFn) -> bytes:
    """A valid file, in any order of names, with some bytes then changed, dropped or added."""
    header: dict[str, Any] = {}
    end = 0
    for index in range(draw(st.integers(0, 5))):
        dtype = draw(st.sampled_from(sorted(DTYPE_BITS)))
        shape = draw(st.lists(st.integers(0, 4), max_size=3))
        size = prod(shape) * DTYPE_BITS[dtype] // 8
        header[draw(st.text(max_size=2)) + str(index)] = tensor(shape, end, end + size, dtype)
        end += size
    names = draw(st.permutations(sorted(header)))
    data = bytearray(described({name: header[name] for name in names}, end))
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.integers(0, len(data) - 1))
        change = draw(st.sampled_from([b"", b"0", b"-", b"1", b",", b'"', b" ", b"\\", b"9", b"\xff", b"e", b"}"]))
        data[place : place + draw(st.integers(0, 1))] = change
    return bytes(data)


@given(_plausible())
def test_mutated_file_is_read_alike_or_refused(data: bytes) -> None:
    _assert_alike_or_refused(data)


def _assert_alike_or_refused(data: bytes) -> None:
    try:
        header = read_header(MemoryFile(data))
    except MantissaError:
        return
    _assert_same(header, data)


def test_every_layout_of_every_dtype_is_accepted() -> None:
    for dtype, shape in product(DTYPE_BITS, ([], [0], [3, 0, 2], [8], [2, 3, 4])):
        bits = prod(shape) * DTYPE_BITS[dtype]
        if bits % 8:
            with pytest.raises(InvalidCheckpoint, match="where its dtype and shape need"):
                read_header(MemoryFile(described({"a": tensor(shape, 0, 1, dtype)}, 1)))
            continue
        data = described({"a": tensor(shape, 0, bits // 8, dtype), "__metadata__": {"format": "pt"}}, bits // 8)
        header = read_header(MemoryFile(data))
        assert header.metadata == {"format": "pt"}
        _assert_same(header, data)


def test_short_header_costs_one_read_and_long_one_two() -> None:
    short, long = (
        described({"a": tensor([20_000], 0, 80_000)}, 80_000),
        described({"a" * 4000 + str(i): tensor([0], 0, 0) for i in range(20)}),
    )
    for data, reads in ((short, 1), (long, 2)):
        file = MemoryFile(data)
        read_header(file)
        assert len(file.reads) == reads
        assert file.reads[0] == (0, FIRST_READ)
        assert sum(length for _, length in file.reads) <= max(FIRST_READ, len(long))


def test_oversized_header_is_refused_before_it_is_read() -> None:
    with pytest.raises(LimitExceeded, match="200,000,000 bytes, more than 100,000,000"):
        read_header(MemoryFile((200_000_000).to_bytes(8, "little") + bytes(200_000_000)))
