"""Reads the header of a safetensors file, validated before any field is trusted or any memory allocated.

    8 bytes: N, little endian | N bytes: JSON, {"name": {"dtype", "shape", "data_offsets"}, ..., "__metadata__": {...}} | data

Every file accepted by this module is accepted by the safetensors library, with the same names, dtypes and shapes: of two entries of one
name the last counts, and undefined fields of an entry are ignored. This module is stricter with repeated entries: both must be valid, and
neither may be named like a field. It refuses entries that are lists, which the library reads as objects, and empty tensors whose other
lengths make more than 2^64 bits.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

from analyzers.checkpoints.reference import quoted
from analyzers.checkpoints.repository import RangeFile, read_range
from analyzers.checkpoints.tensor import DTYPE_BITS
from analyzers.core import limits
from analyzers.core.errors import InvalidCheckpoint, LimitExceeded
from analyzers.core.notes import Note
from analyzers.core.terminal import plural
from analyzers.core.untrusted_json import InvalidJson, parse_json

METADATA_ENTRIES = 10_000  # Metadata of a safetensors header; real ones have under 200.
METADATA_BYTES = 16_000_000  # Metadata of a safetensors header; the longest are lists of tags.
_UNICODE_HEADER_BYTES = 32_000_000  # A header beyond ASCII: decoded, up to four times its bytes.
FIRST_READ = 64 << 10
_LENGTH = 8
_FIELDS = ("dtype", "shape", "data_offsets")
_ONCE = frozenset({*_FIELDS, "__metadata__"})
# Strings of one tensor: its name, three field names, its dtype. A tensor of 3 dimensions has 7 commas.
_STRINGS_PER_TENSOR = 5
_COMMAS_PER_TENSOR = 8
_BYTES_PER_TENSOR = 1_000  # real ones take 100 to 200
_OVERFLOW = 1 << 64


class HeaderTensor(NamedTuple):
    """One tensor as described by a header.

    start, stop: absolute byte offsets in the file of its first element and past its last; strides: see `Tensor`.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int
    strides: tuple[int, ...] | None = None


class Omitted(NamedTuple):
    """Tensors of a file that are not read.

    what: names them; parameters: None if unknown; weights: False for tensors that are no weights, such as an optimizer's.
    """

    what: str
    tensors: int
    parameters: int | None
    weights: bool = True


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a weight file.

    tensors: sorted by offset, or by name for a pickled file; metadata: free-form metadata of the writer; nbytes: length of the description,
    which the data follow in a safetensors file; notes: remarks for the reader; opaque: classes and functions of a pickled file whose values
    were not interpreted; omitted: its tensors that are not read; refused: why transformers does not load a file of this name and content,
    as a clause, empty if it does; pickled: whether its content can run code.
    """

    tensors: tuple[HeaderTensor, ...]
    metadata: Mapping[str, str]
    nbytes: int
    notes: tuple[Note, ...] = ()
    opaque: tuple[str, ...] = ()
    omitted: tuple[Omitted, ...] = ()
    refused: str = ""
    pickled: bool = False


class _Malformed(Exception):
    """A fault of a header; the caller adds the file's name."""


def read_header(file: RangeFile) -> Header:
    """Read and validate the header of ``file``: one read if it is shorter than 64 KiB, else two.

    Raises InvalidCheckpoint, which names the file and the fault, and LimitExceeded.
    """
    size = file.size
    if size < _LENGTH:
        what = "is empty" if size == 0 else f"is cut off after {plural(size, 'byte')}"
        raise InvalidCheckpoint(f"{quoted(file.path, 200)} {what}: upload or download it again.")
    raw: bytes | bytearray = read_range(file, 0, min(size, FIRST_READ))
    stop = header_stop(raw, size, file.path)
    if stop > len(raw):
        beginning, raw = raw, bytearray(stop)
        raw[: len(beginning)] = beginning
        file.read_into(len(beginning), memoryview(raw)[len(beginning) :])
    return parse_header(raw[:stop], size, file.path)


def header_stop(raw: bytes | bytearray, file_size: int, path: str = "the file") -> int:
    """Return the byte offset in the file at which the header that starts ``raw`` ends, checked against the limits.

    raw: at least the first 8 bytes. Raises InvalidCheckpoint, LimitExceeded.
    """
    if raw.startswith(b"version https://git-lfs"):
        raise InvalidCheckpoint(f"{quoted(path, 200)} is a Git LFS pointer in place of the weights: fetch them with 'git lfs pull'.")
    length = int.from_bytes(raw[:_LENGTH], "little")
    if len(raw) < _LENGTH or length > file_size - _LENGTH:
        if length <= limits.HEADER_BYTES and raw[_LENGTH : _LENGTH + 1] in (b"{", b""):
            raise cut_off(path, "header alone needs at least", _LENGTH + length, file_size)
        raise InvalidCheckpoint(
            f"{quoted(path, 200)} is not a safetensors file: it announces a header of {plural(length, 'byte')} and has {file_size:,}."
        )
    if length > limits.HEADER_BYTES:
        raise LimitExceeded(f"The header of {quoted(path, 200)} has {length:,} bytes, more than {limits.HEADER_BYTES:,}.")
    return _LENGTH + length


def cut_off(path: str, what: str, needed: int, size: int) -> InvalidCheckpoint:
    """Return the error about a file with only the first ``size`` of ``needed`` bytes. what: the part that needs them, with its verb."""
    missing = needed - size
    least = "at least " if what.endswith("at least") else ""
    there, lost = ("is", "is") if size == 1 else ("are", "is" if missing == 1 else "are")
    return InvalidCheckpoint(
        f"{quoted(path, 200)} is cut off: its {what} {plural(needed, 'byte')} and {size:,} {there} there: {least}{missing:,} {lost} "
        "missing. Upload or download it again."
    )


def parse_header(raw: bytes | bytearray, file_size: int, path: str = "the file") -> Header:
    """Parse and validate a header without reading tensor data.

    raw: the file from its first byte to the end of the header, or beyond, including the 8 length bytes;
    file_size: bytes of the whole file; path: its name, for messages.
    Raises InvalidCheckpoint, which names the file and the fault, and LimitExceeded.
    """
    stop = header_stop(raw, file_size, path)
    try:
        _check_counts(raw, stop)
        described = _decode(raw, stop)
        metadata = _metadata(described.pop("__metadata__", None))
        tensors = [_tensor(name, value, stop) for name, value in described.items()]
        tensors.sort(key=itemgetter(3, 4))
        _check_offsets(tensors, stop, file_size, path)
    except _Malformed as error:
        raise InvalidCheckpoint(f"The header of {quoted(path, 200)} is damaged: {error}.") from None
    except LimitExceeded as error:
        raise LimitExceeded(f"In {quoted(path, 200)}: {error}") from None
    return Header(tuple(tensors), metadata, stop)


def written_header(tensors: Iterable[tuple[str, str, Sequence[int], int]]) -> bytes:
    """Return the header that the safetensors library writes for (name, dtype, shape, bytes) in this order, including its length."""
    described: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, dtype, shape, nbytes in tensors:
        described[name] = {"dtype": dtype, "shape": shape, "data_offsets": (start, start + nbytes)}
        start += nbytes
    text = json.dumps(described, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(_LENGTH, "little") + text


def _check_counts(raw: bytes | bytearray, stop: int) -> None:
    """Check a header against the limits before decoding it: decoded strings, lists and numbers take up to 30 times their bytes.

    A tensor is one object of five strings; everything beyond that is metadata.
    """
    objects = raw.count(b"{", _LENGTH, stop)
    strings = (raw.count(b'"', _LENGTH, stop) - raw.count(b'\\"', _LENGTH, stop)) // 2
    if strings > _STRINGS_PER_TENSOR * objects + 2 * METADATA_ENTRIES:
        raise _too_much_metadata()
    if objects > limits.TENSORS + METADATA_ENTRIES or raw.count(b",", _LENGTH, stop) > _COMMAS_PER_TENSOR * limits.TENSORS:
        raise _too_many_tensors()
    if stop > _BYTES_PER_TENSOR * objects + METADATA_BYTES:
        raise LimitExceeded(f"its metadata have more than {METADATA_BYTES:,} bytes.")
    if stop > _UNICODE_HEADER_BYTES and not raw.isascii():
        raise LimitExceeded(f"it has more than {_UNICODE_HEADER_BYTES:,} bytes and holds other than ASCII characters.")


def _decode(raw: bytes | bytearray, stop: int) -> dict[str, Any]:
    """Parse the outermost object; `_object` checks it and the objects inside it for repeated names."""
    try:
        text = str(memoryview(raw)[_LENGTH:stop], "utf-8")
        # The library parses "-0" as a float, Python as the integer 0. The hook is set only if "-0" occurs: it costs 0.4 s per million
        # numbers.
        whole = _whole if b"-0" in raw else None
        pairs = parse_json(text, values=None, object_pairs_hook=_object, parse_int=whole)
    except UnicodeDecodeError as error:
        raise _Malformed(f"it is not UTF-8 at byte {error.start:,}") from None
    except InvalidJson as error:
        raise _Malformed(f"it {error}") from None
    if not isinstance(pairs, dict):
        raise _Malformed("it does not describe tensors by name")
    if len(pairs) > limits.TENSORS + 1:
        raise _too_many_tensors()
    return pairs


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any] | tuple[Any, Any, Any]:
    """Return an object as a dict, or as a tensor's three fields if they are in the usual order, which halves time and memory."""
    if len(pairs) == 3 and pairs[0][0] == "dtype" and pairs[1][0] == "shape" and pairs[2][0] == "data_offsets":
        dtype, shape, offsets = pairs[0][1], pairs[1][1], pairs[2][1]
        if type(dtype) is str and type(shape) is list and type(offsets) is list:
            return sys.intern(dtype), tuple(shape), tuple(offsets)
        return dtype, shape, offsets
    result = dict(pairs)
    if len(result) != len(pairs) and not all(isinstance(value, str) for _, value in pairs):  # the library takes the last of two strings
        entry, seen = isinstance(result.get("dtype"), str), set()
        for name, value in pairs:
            if name in seen and name in _ONCE:
                raise _Malformed(f"{quoted(name)} occurs twice")
            seen.add(name)
            if not entry and value is not result[name]:  # a tensor that a later entry of its name replaces
                _tensor(name, value, 0)
    return result


def _whole(text: str) -> float:
    return float(text) if text[0] == "-" else int(text)


def _metadata(value: Any) -> dict[str, str]:
    if value is None:  # some writers store null for "none", and the library accepts it
        return {}
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise _Malformed("its __metadata__ is not a list of texts by name")
    if len(value) > METADATA_ENTRIES:  # possible if its texts contain braces, which count as tensors above
        raise _too_much_metadata()
    return value


def _tensor(name: str, value: Any, data: int) -> HeaderTensor:
    """Validate one tensor, including its length against dtype and shape. data: byte offset in the file of the first tensor."""
    if len(name) > limits.TENSOR_NAME_LENGTH:
        raise LimitExceeded(f"a tensor's name has {len(name):,} characters, more than {limits.TENSOR_NAME_LENGTH:,}.")
    if isinstance(value, dict) and value.keys() >= set(_FIELDS):
        value = tuple(value[field] for field in _FIELDS)
    if not isinstance(value, tuple):
        raise _Malformed(f"{quoted(name)} is not described by dtype, shape and data_offsets")
    dtype, shape, offsets = value
    bits = DTYPE_BITS.get(dtype) if isinstance(dtype, str) else None
    if bits is None:
        raise _Malformed(f"{quoted(name)} has an unknown dtype, {quoted(dtype, 30) if isinstance(dtype, str) else 'not a name'}")
    if not isinstance(shape, list | tuple) or not isinstance(offsets, list | tuple) or len(offsets) != 2:
        raise _Malformed(f"{quoted(name)} has a shape or data_offsets that is not a list of the right length")
    if len(shape) > limits.TENSOR_DIMENSIONS:
        raise LimitExceeded(f"{quoted(name)} has {len(shape):,} dimensions, more than {limits.TENSOR_DIMENSIONS}.")
    start, stop = offsets
    if type(start) is not int or type(stop) is not int or not 0 <= start <= stop < _OVERFLOW:
        raise _Malformed(f"{quoted(name)} has data_offsets that are not two whole numbers in order")
    nbits = bits
    for length in shape:
        if type(length) is not int or length < 0:  # bool is a subclass of int
            raise _Malformed(f"{quoted(name)} has a shape that is not made of whole numbers from 0 on")
        nbits *= length or 1  # a zero must not hide an earlier overflow: the library multiplies from the left
        if nbits >= _OVERFLOW:
            raise _Malformed(f"{quoted(name)} has a shape of more than 2^64 bits")
    if 0 in shape:
        nbits = 0
    if nbits % 8:
        raise _Malformed(f"{quoted(name)} ends inside a byte: {nbits:,} bits")
    if stop - start != nbits // 8:
        raise _Malformed(f"{quoted(name)} has {plural(stop - start, 'byte')} of data where its dtype and shape need {nbits // 8:,}")
    return HeaderTensor(name, dtype, tuple(shape), data + start, data + stop)


def _check_offsets(tensors: Sequence[HeaderTensor], data: int, file_size: int, path: str) -> None:
    """Check that ``tensors``, sorted by offset, cover the file from ``data`` to its end, without gaps or overlaps."""
    end = data
    for tensor in tensors:
        if tensor.start != end:
            what = "overlaps the tensor before it" if tensor.start < end else "leaves a hole before it"
            raise _Malformed(f"{quoted(tensor.name)} {what}: it starts at byte {tensor.start - data:,} of the data, not at {end - data:,}")
        end = tensor.stop
    if end > file_size:
        raise cut_off(path, "tensors need", end, file_size)
    if end < file_size:
        raise _Malformed(f"{plural(file_size - end, 'byte follows', 'bytes follow')} the last tensor without belonging to one")


def _too_many_tensors() -> LimitExceeded:
    return LimitExceeded(f"its header has more entries than {limits.TENSORS:,} tensors need.")


def _too_much_metadata() -> LimitExceeded:
    return LimitExceeded(f"its metadata have more than {METADATA_ENTRIES:,} entries.")
