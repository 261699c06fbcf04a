"""The header of a safetensors file, validated before anything is believed or allocated.

    8 bytes: N, little endian | N bytes: JSON, {"name": {"dtype", "shape", "data_offsets"}, ..., "__metadata__": {...}} | data

Every file accepted here is one the safetensors library accepts, with the same names, dtypes and shapes. Some that it
takes are refused here: names given twice, fields nobody defined, a header that does not start with '{'.
"""

import gc
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple, NoReturn

from analyzers import limits
from analyzers.checkpoints.reference import quoted
from analyzers.checkpoints.repository import RangeFile, read_range
from analyzers.checkpoints.tensor import DTYPE_BITS
from analyzers.errors import InvalidCheckpoint, LimitExceeded
from analyzers.terminal import plural

FIRST_READ = 64 << 10
_LENGTH = 8
_FIELDS = ("dtype", "shape", "data_offsets")
# A tensor of 3 dimensions has 7 commas: 2 between its fields, 3 between numbers, 1 after it.
_COMMAS_PER_TENSOR = 8
_OVERFLOW = 1 << 64


class HeaderTensor(NamedTuple):
    """One tensor as its header has it.

    start, stop: absolute positions in the file, in bytes, of its first element and behind its last; strides: as of `Tensor`.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int
    strides: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Header:
    """tensors: in the order of their data, of a pickled file in that of its names; metadata: the writer's own remarks;
    nbytes: length of the description, behind which the data start in a safetensors file; notes: what a reader should know.
    """

    tensors: tuple[HeaderTensor, ...]
    metadata: Mapping[str, str]
    nbytes: int
    notes: tuple[str, ...] = ()


class _Malformed(Exception):
    """What is wrong with a header, to be completed by the file's name."""


def read_header(file: RangeFile) -> Header:
    """Read and validate the header of ``file``; one read where it is shorter than 64 KiB, else two.

    Raises InvalidCheckpoint naming the file and what is wrong, and LimitExceeded.
    """
    size = file.size
    if size < _LENGTH:
        what = "is empty" if size == 0 else f"is cut off after {plural(size, 'byte')}"
        raise InvalidCheckpoint(f"{quoted(file.path, 200)} {what}: upload or download it again.")
    raw = read_range(file, 0, min(size, FIRST_READ))
    stop = header_stop(raw, size, file.path)
    if stop > len(raw):
        raw += read_range(file, len(raw), stop - len(raw))
    return parse_header(raw[:stop], size, file.path)


def header_stop(raw: bytes, file_size: int, path: str = "the file") -> int:
    """Where the header that ``raw`` begins with ends, in bytes from the start of the file, checked against limits.

    raw: at least the first 8 bytes. Raises InvalidCheckpoint, LimitExceeded.
    """
    if raw.startswith(b"version https://git-lfs"):
        raise InvalidCheckpoint(f"{quoted(path, 200)} is a Git LFS pointer in place of the weights: fetch them with 'git lfs pull'.")
    length = int.from_bytes(raw[:_LENGTH], "little")
    if len(raw) < _LENGTH or length > file_size - _LENGTH:
        raise InvalidCheckpoint(
            f"{quoted(path, 200)} is no complete safetensors file: it announces a header of {plural(length, 'byte')} and has "
            f"{file_size:,} in all."
        )
    if length > limits.HEADER_BYTES:
        raise LimitExceeded(
            f"The header of {quoted(path, 200)} has {length:,} bytes, more than {limits.HEADER_BYTES:,} (MANTISSA_HEADER_BYTES)."
        )
    return _LENGTH + length


def parse_header(raw: bytes, file_size: int, path: str = "the file") -> Header:
    """Validate a header. No tensor data is looked at.

    raw: the file's first bytes up to the end of the header, the 8 bytes of its length included;
    file_size: bytes of the whole file; path: its name, for messages.
    Raises InvalidCheckpoint naming the file and what is wrong, and LimitExceeded.
    """
    stop = header_stop(raw, file_size, path)
    try:
        with collector_at_rest():
            described = _decode(raw[_LENGTH:stop])
            metadata = _metadata(described.pop("__metadata__", None))
            found = [_tensor(name, value) for name, value in described.items()]
            found.sort(key=itemgetter(3, 4))
            tensors = _place(found, stop, file_size)
    except _Malformed as error:
        raise InvalidCheckpoint(f"The header of {quoted(path, 200)} is damaged: {error}.") from None
    except LimitExceeded as error:
        raise LimitExceeded(f"In {quoted(path, 200)}: {error}") from None
    return Header(tensors, metadata, stop)


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Without Python's cycle collector, which takes half of the time here, searching a million new objects that hold no cycle.

    Two threads at once are safe: whichever found it running sets it running again.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def _decode(raw: bytes) -> dict[str, Any]:
    """The outermost object; every object in it is free of duplicate names (`_distinct`)."""
    if raw[:1] != b"{":
        raise _Malformed("it does not start with '{'")
    # Counted before parsing: a hostile header of empty lists would take 30 times its size in memory.
    if raw.count(b",") > _COMMAS_PER_TENSOR * limits.TENSORS or raw.count(b"{") > 2 * limits.TENSORS:
        raise _too_many_tensors()
    try:
        text = raw.decode()
        # "-0" reads as a float in the library and as 0 here. Told apart only where it may stand: a hook costs 0.4 s per million numbers.
        whole = _whole if b"-0" in raw else None
        pairs = json.loads(text, object_pairs_hook=_distinct, parse_int=whole, parse_float=_not_whole, parse_constant=_not_whole)
        if "\\u" in text:  # json reads half a surrogate pair, which is no character and which the library refuses
            json.dumps(pairs, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise _Malformed("it holds half a surrogate pair") from None
    except UnicodeDecodeError as error:
        raise _Malformed(f"byte {error.start:,} of it is not UTF-8") from None
    except RecursionError:
        raise _Malformed("its JSON is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise _Malformed(f"it is not JSON ({error.msg} at character {error.pos:,})") from None
    except ValueError:  # the interpreter's own limit on the digits of a number
        raise _Malformed("it holds a number of thousands of digits") from None
    if not isinstance(pairs, dict):
        raise _Malformed("it describes one tensor without a name")
    if len(pairs) > limits.TENSORS + 1:
        raise _too_many_tensors()
    return pairs


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any] | tuple[Any, Any, Any]:
    """An object as a dict, or, in the order every writer uses, a tensor's three fields: half the time and memory."""
    if len(pairs) == 3 and pairs[0][0] == "dtype" and pairs[1][0] == "shape" and pairs[2][0] == "data_offsets":
        return pairs[0][1], pairs[1][1], pairs[2][1]
    result = dict(pairs)
    if len(result) != len(pairs):
        seen = set()
        for name, _ in pairs:
            if name in seen:
                raise _Malformed(f"{quoted(name)} stands there twice")
            seen.add(name)
    return result


def _whole(text: str) -> int:
    if text[0] == "-":
        _not_whole(text)
    return int(text)


def _not_whole(text: str) -> NoReturn:
    raise _Malformed(f"{quoted(text, 30)} stands where only whole numbers from 0 on may")


def _metadata(value: Any) -> dict[str, str]:
    if value is None:  # some writers put null for "none", and the library reads it so
        return {}
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise _Malformed("its __metadata__ is not a list of texts by name")
    return value


def _tensor(name: str, value: Any) -> tuple[str, str, tuple[int, ...], int, int]:
    """Name, dtype, shape and offsets (relative to the data) of one tensor; its length agrees with dtype and shape."""
    if len(name) > limits.TENSOR_NAME_LENGTH:
        raise LimitExceeded(
            f"a tensor's name has {len(name):,} characters, more than {limits.TENSOR_NAME_LENGTH:,} (MANTISSA_TENSOR_NAME_LENGTH)."
        )
    if isinstance(value, dict) and value.keys() == set(_FIELDS):
        value = tuple(value[field] for field in _FIELDS)
    if not isinstance(value, tuple):
        raise _Malformed(f"{quoted(name)} is not described by dtype, shape and data_offsets, and nothing else")
    dtype, shape, offsets = value
    bits = DTYPE_BITS.get(dtype) if isinstance(dtype, str) else None
    if bits is None:
        raise _Malformed(f"{quoted(name)} has an unknown dtype, {quoted(dtype, 30) if isinstance(dtype, str) else 'not a name'}")
    if not isinstance(shape, list) or not isinstance(offsets, list) or len(offsets) != 2:
        raise _Malformed(f"{quoted(name)} has a shape or data_offsets that is no list of the right length")
    if len(shape) > limits.TENSOR_DIMENSIONS:
        raise LimitExceeded(
            f"{quoted(name)} has {len(shape):,} dimensions, more than {limits.TENSOR_DIMENSIONS} (MANTISSA_TENSOR_DIMENSIONS)."
        )
    start, stop = offsets
    if type(start) is not int or type(stop) is not int or not 0 <= start <= stop < _OVERFLOW:
        raise _Malformed(f"{quoted(name)} has data_offsets that are not two whole numbers in order")
    nbits = bits
    for length in shape:
        if type(length) is not int or length < 0:  # bool is a subclass of int
            raise _Malformed(f"{quoted(name)} has a shape that is not made of whole numbers from 0 on")
        nbits *= length or 1  # a zero does not hide an overflow before it: the library multiplies from the left
        if nbits >= _OVERFLOW:
            raise _Malformed(f"{quoted(name)} has a shape of more than 2^64 bits")
    if 0 in shape:
        nbits = 0
    if nbits % 8:
        raise _Malformed(f"{quoted(name)} ends inside a byte: {nbits:,} bits")
    if stop - start != nbits // 8:
        raise _Malformed(f"{quoted(name)} has {plural(stop - start, 'byte')} of data where its dtype and shape need {nbits // 8:,}")
    return name, dtype, tuple(shape), start, stop


def _place(found: list[tuple[str, str, tuple[int, ...], int, int]], data: int, file_size: int) -> tuple[HeaderTensor, ...]:
    """Absolute positions, given that the tensors fill the data from its first byte to its last, without hole or overlap."""
    end = 0
    tensors = []
    for name, dtype, shape, start, stop in found:
        if start != end:
            what = "overlaps the tensor before it" if start < end else "leaves a hole before it"
            raise _Malformed(f"{quoted(name)} {what}: it starts at byte {start:,} of the data, not at {end:,}")
        end = stop
        tensors.append(HeaderTensor(name, dtype, shape, data + start, data + stop))
    if data + end > file_size:
        raise _Malformed(f"the file is cut off: its tensors need {data + end:,} bytes and it has {file_size:,}")
    if data + end < file_size:
        raise _Malformed(f"{plural(file_size - data - end, 'byte follows', 'bytes follow')} the last tensor without belonging to one")
    return tuple(tensors)


def _too_many_tensors() -> LimitExceeded:
    return LimitExceeded(f"its header has more entries than {limits.TENSORS:,} tensors need (MANTISSA_TENSORS).")
