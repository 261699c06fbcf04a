"""Reads the header of a safetensors file, validated before any field is trusted or any memory allocated.

    8 bytes: N, little endian | N bytes: JSON, {"name": {"dtype", "shape", "data_offsets"}, ..., "__metadata__": {...}} | data

Every file accepted by this module is accepted by the safetensors library, with the same names, dtypes and shapes; undefined fields of an
entry are ignored. This module is stricter: it refuses repeated names, of which the library takes the last, entries that are lists, which
the library reads as objects, and empty tensors whose other lengths make more than 2^64 bits.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

from analyzers.checkpoints.formats.faults import Damaged, Excess, cut_off, faults_named
from analyzers.checkpoints.reference import quoted
from analyzers.checkpoints.repository import RangeFile, read_range
from analyzers.checkpoints.tensor import DTYPE_BITS
from analyzers.core import limits
from analyzers.core.notes import Note
from analyzers.core.untrusted_json import InvalidJson, parse_json

METADATA_ENTRIES = 10_000  # Metadata of a safetensors header; real ones have under 200.
METADATA_BYTES = 16_000_000  # Metadata of a safetensors header; the longest are lists of tags.
_UNICODE_HEADER_BYTES = 32_000_000  # A header beyond ASCII: decoded, up to four times its bytes.
FIRST_READ = 64 << 10
_LENGTH = 8
_FIELDS = ("dtype", "shape", "data_offsets")
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

    tensors: sorted by offset, or in the order of a pickled file; metadata: free-form metadata of the writer; notes: remarks for the reader;
    omitted: tensors that are not read; refused: why transformers does not load a file of this content, as a clause, empty if it does;
    pickled: whether its content can run code.
    """

    tensors: tuple[HeaderTensor, ...]
    metadata: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    omitted: tuple[Omitted, ...] = ()
    refused: str = ""
    pickled: bool = False


def read_header(file: RangeFile) -> Header:
    """Read and validate the header of ``file``: one read if it is shorter than 64 KiB, else two.

    Raises InvalidCheckpoint, which names the file and the fault, and LimitExceeded.
    """
    with faults_named(file):
        return _read(file)


def _read(file: RangeFile) -> Header:
    beginning = read_range(file, 0, min(file.size, FIRST_READ))
    length = int.from_bytes(beginning[:_LENGTH], "little")
    data = _LENGTH + length
    if data > file.size:
        raise cut_off("header needs", data, file.size)
    if length > limits.HEADER_BYTES:
        raise Excess(f"has a header of {length:,} bytes, more than {limits.HEADER_BYTES:,}.")
    header = bytearray(beginning[_LENGTH:data])
    if data > len(beginning):
        header.extend(bytes(data - len(beginning)))
        file.read_into(len(beginning), memoryview(header)[len(beginning) - _LENGTH :])
    _check_counts(header)
    described = _decode(header)
    metadata = _metadata(described.pop("__metadata__", None))
    if len(described) > limits.TENSORS:
        raise _too_large()
    tensors = sorted((_tensor(name, value, data) for name, value in described.items()), key=itemgetter(3, 4))
    _check_offsets(tensors, data, file.size)
    return Header(tuple(tensors), metadata)


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


def _check_counts(header: bytearray) -> None:
    """Check a header against the limits before decoding it: decoded strings, lists and numbers take up to 30 times their bytes.

    A tensor is one object of five strings; everything beyond that is metadata.
    """
    objects, commas = header.count(b"{"), header.count(b",")
    strings = (header.count(b'"') - header.count(b'\\"')) // 2
    if (
        strings > _STRINGS_PER_TENSOR * objects + 2 * METADATA_ENTRIES
        or objects > limits.TENSORS + METADATA_ENTRIES
        or commas > _COMMAS_PER_TENSOR * limits.TENSORS
        or len(header) > _BYTES_PER_TENSOR * objects + METADATA_BYTES
        or (len(header) > _UNICODE_HEADER_BYTES and not header.isascii())
    ):
        raise _too_large()


def _too_large() -> Excess:
    return Excess(
        f"has a header of more than {limits.TENSORS:,} tensors, or metadata of more than {METADATA_ENTRIES:,} entries or "
        f"{METADATA_BYTES:,} bytes."
    )


def _decode(header: bytearray) -> dict[str, Any]:
    """Parse the outermost object. Raises Damaged."""
    # The library parses "-0" as a float, Python as the integer 0. The hook is set only if "-0" occurs: it costs 0.4 s per million numbers.
    whole = _whole if b"-0" in header else None
    try:
        described = parse_json(str(header, "utf-8"), values=None, object_pairs_hook=_object, parse_int=whole)
    except UnicodeDecodeError as error:
        raise Damaged(f"its header is not UTF-8 at byte {error.start:,}") from None
    except InvalidJson as error:
        raise Damaged(f"its header {error}") from None
    if not isinstance(described, dict):
        raise Damaged("its header does not describe tensors by name")
    return described


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise Damaged("a name in its header occurs twice")
    return result


def _whole(text: str) -> float:
    return float(text) if text[0] == "-" else int(text)


def _metadata(value: Any) -> dict[str, str]:
    if value is None:  # some writers store null for "none", and the library accepts it
        return {}
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise Damaged("its __metadata__ is not a list of texts by name")
    if len(value) > METADATA_ENTRIES:  # possible if its texts contain braces, which count as tensors above
        raise _too_large()
    return value


def _tensor(name: str, value: Any, data: int) -> HeaderTensor:
    """Validate one tensor, including its length against dtype and shape. data: byte offset in the file of the first tensor."""
    fields: Any = value if isinstance(value, dict) else {}
    dtype, shape, offsets = (fields.get(key) for key in _FIELDS)
    nbits = DTYPE_BITS.get(dtype) if isinstance(dtype, str) else None
    lists = isinstance(shape, list) and isinstance(offsets, list) and len(offsets) == 2
    # bool is a subclass of int
    if nbits is None or not lists or not all(type(number) is int and 0 <= number < _OVERFLOW for number in (*shape, *offsets)):
        raise Damaged(f"{quoted(name)} is not described by a known dtype, a shape and two data_offsets, of whole numbers from 0 on")
    if len(name) > limits.TENSOR_NAME_LENGTH or len(shape) > limits.TENSOR_DIMENSIONS:
        most = f"{limits.TENSOR_NAME_LENGTH:,} characters or {limits.TENSOR_DIMENSIONS} dimensions"
        raise Excess(f"holds {quoted(name)}, a tensor of more than {most}.")
    for length in shape:
        nbits *= length or 1  # a zero must not hide an earlier overflow: the library multiplies from the left
        if nbits >= _OVERFLOW:
            raise Damaged(f"{quoted(name)} has a shape of more than 2^64 bits")
    nbits = 0 if 0 in shape else nbits
    start, stop = offsets
    if nbits != 8 * (stop - start):
        raise Damaged(f"{quoted(name)} has {stop - start:,} bytes of data where its dtype and shape need {nbits / 8:,g}")
    return HeaderTensor(name, sys.intern(dtype), tuple(shape), data + start, data + stop)


def _check_offsets(tensors: Sequence[HeaderTensor], data: int, file_size: int) -> None:
    """Check that ``tensors``, sorted by offset, cover the file from ``data`` to its end, without gaps or overlaps."""
    end = data
    for tensor in tensors:
        if tensor.start != end:
            raise Damaged(f"{quoted(tensor.name)} starts at byte {tensor.start - data:,} of the data, not at {end - data:,}")
        end = tensor.stop
    if end > file_size:
        raise cut_off("tensors need", end, file_size)
    if end < file_size:
        raise Damaged(f"{file_size - end:,} bytes after the last tensor belong to none")
