"""Reads the header of a GGUF file (llama.cpp) by range, validated before any field is trusted or any memory allocated.

    "GGUF" | version u32 | tensors u64 | entries u64
    entries: key | type u32 | value                       strings: length u64 | UTF-8; lists: type u32 | length u64 | values
    tensors: name | dimensions u32 | lengths u64, the innermost first | type u32 | offset u64, in the data
    padding to the alignment | data, each tensor padded to the alignment

All fields are little endian. Files that llama.cpp refuses are refused: tensors must cover the data in order, without gaps or
overlaps. Values of entries are skipped, except the alignment.
"""

import io
import struct
from math import prod

from analyzers.checkpoints.formats.faults import Damaged, Excess, Unsupported, cut_off, faults_named
from analyzers.checkpoints.formats.read_cache import ReadCache
from analyzers.checkpoints.formats.safetensors_header import FIRST_READ, Header, HeaderTensor
from analyzers.checkpoints.reference import quoted
from analyzers.checkpoints.repository import RangeFile
from analyzers.core import limits

GGUF_ENTRIES = 65_536  # Entries of a GGUF header are parsed one by one; real ones have under 100.
GGUF_STRINGS = 4_000_000  # Strings in lists of a GGUF header; a vocabulary has under 600,000.
_VERSIONS = (2, 3)
_LONGEST_READ = 2 << 20

# Entry types: bytes of the fixed-size types by type number, and the numbers of the two variable-size types.
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_UINT32, _STRING, _LIST = 4, 8, 9
_NESTING = 4  # nested lists; no known writer produces any
_DIMENSIONS = 4  # ggml's maximum
_ALIGNMENT = 32
_LARGEST_ALIGNMENT = 1 << 20

_ALIGNMENT_KEY = "general.alignment"


def read_gguf(file: RangeFile) -> Header:
    """Read and validate the header of a GGUF file of version 2 or 3.

    Shapes are row-major, as in torch. Floats and integers have their usual dtypes; the dtype of a quantized tensor is the
    name of its GGML type ("Q4_K"), which is not in `tensor.DTYPE_BITS`.
    Reads 64 KiB; if the vocabulary makes the header longer, reads chunks of 2 MiB.
    Raises InvalidCheckpoint, which names the file and the fault, UnsupportedWeights, LimitExceeded.
    """
    with faults_named(file):
        return _Reader(file).header()


class _Reader:
    """Reads a header sequentially."""

    def __init__(self, file: RangeFile) -> None:
        cache = ReadCache(file, file.size + _LONGEST_READ)
        cache.keep(0, FIRST_READ)
        self._source = io.BufferedReader(cache, _LONGEST_READ)
        self._size, self._at = file.size, 0
        self._strings = 0

    def header(self) -> Header:
        magic, version, tensors, entries = struct.unpack("<4sIQQ", self._take(24))
        if magic != b"GGUF":
            raise Damaged("it is not a GGUF file")
        if version not in _VERSIONS:
            raise Unsupported(f"has version {version} of GGUF, or is big endian: convert it to version 3, little endian, with llama.cpp.")
        if tensors > limits.TENSORS or entries > GGUF_ENTRIES:
            raise Excess(f"claims more than {limits.TENSORS:,} tensors or {GGUF_ENTRIES:,} entries.")
        alignment = self._entries(entries)
        if not 0 < alignment <= _LARGEST_ALIGNMENT or alignment & (alignment - 1):
            raise Damaged(f"its alignment is {alignment}, not a power of two up to {_LARGEST_ALIGNMENT:,}")
        return Header(self._tensors(tensors, alignment))

    def _entries(self, count: int) -> int:
        """Skip all entries but the alignment, which is returned."""
        alignment, keys = _ALIGNMENT, set()
        for _ in range(count):
            key = self._text()
            if key in keys:
                raise Damaged(f"its entry {quoted(key)} occurs twice")
            keys.add(key)
            kind = self._number("<I")
            if key == _ALIGNMENT_KEY and kind == _UINT32:
                alignment = self._number("<I")
            else:
                self._pass_over(kind, 1)
        return alignment

    def _pass_over(self, kind: int, count: int, depth: int = 0) -> None:
        """Skip ``count`` values of a type. depth: of the lists that they are in."""
        if kind in _SIZES:
            self._skip(count * _SIZES[kind])
            return
        if kind not in (_STRING, _LIST) or depth > _NESTING:
            raise Damaged(f"it holds a value of unknown type {kind}, or lists nested more than {_NESTING} deep")
        self._strings += count
        if self._strings > GGUF_STRINGS:
            raise Excess(f"holds more than {GGUF_STRINGS:,} strings and lists.")
        for _ in range(count):
            if kind == _STRING:
                self._skip(self._number("<Q"))
            else:
                self._pass_over(self._number("<I"), self._number("<Q"), depth + 1)

    def _tensors(self, count: int, alignment: int) -> tuple[HeaderTensor, ...]:
        described = [self._tensor() for _ in range(count)]
        if len({name for name, *_ in described}) != len(described):
            raise Damaged("two of its tensors have the same name")
        data = -(-self._at // alignment) * alignment
        end = 0
        tensors = []
        for name, dtype, shape, offset, nbytes in described:
            if offset != end:
                raise Damaged(f"{quoted(name)} is at byte {offset:,} of the data, not at {end:,}, where the tensor before it ends")
            tensors.append(HeaderTensor(name, dtype, shape, data + offset, data + offset + nbytes))
            end = -(-(offset + nbytes) // alignment) * alignment
        last = max((tensor.stop for tensor in tensors), default=0)
        if last > self._size:
            raise cut_off("tensors need", last, self._size)
        return tuple(tensors)

    def _tensor(self) -> tuple[str, str, tuple[int, ...], int, int]:
        """Read name, dtype, shape, offset in the data and bytes of the next tensor."""
        name = self._text()
        dimensions = self._number("<I")
        if dimensions > _DIMENSIONS:
            raise Damaged(f"{quoted(name)} has {dimensions:,} dimensions, and ggml has {_DIMENSIONS}")
        shape = tuple(self._number("<Q") for _ in range(dimensions))[::-1]
        kind, offset = self._number("<I"), self._number("<Q")
        dtype, block, size = _type(kind, name)
        elements = prod(shape)
        if elements >= 1 << 63 or any(length >= 1 << 63 for length in shape):
            raise Damaged(f"{quoted(name)} has a shape of more than 2^63 elements")
        if block > 1 and (not shape or shape[-1] % block):
            raise Damaged(f"{quoted(name)} has rows whose length is not a multiple of {block}, the block length of {dtype}")
        return name, dtype, shape, offset, elements // block * size

    def _text(self) -> str:
        """Read the next string, which is a name."""
        length, longest = self._number("<Q"), limits.TENSOR_NAME_LENGTH
        if length > longest:
            raise Excess(f"holds a name of {length:,} bytes, more than {longest:,}.")
        try:
            return self._take(length).decode()
        except UnicodeDecodeError:
            raise Damaged("one of its names is not UTF-8") from None

    def _number(self, form: str) -> int:
        value: int = struct.unpack(form, self._take(struct.calcsize(form)))[0]
        return value

    def _take(self, length: int) -> bytes:
        self._advance(length)
        return self._source.read(length)

    def _skip(self, length: int) -> None:
        self._advance(length)
        self._source.seek(self._at)

    def _advance(self, length: int) -> None:
        self._at += length
        if self._at > self._size:
            raise cut_off("header needs at least", self._at, self._size)
        if self._at > limits.HEADER_BYTES:
            raise Excess(f"has a header of more than {limits.HEADER_BYTES:,} bytes.")


def _type(kind: int, name: str) -> tuple[str, int, int]:
    """Return dtype, elements per block and bytes per block of GGML type number ``kind``."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        found = GGMLQuantizationType(kind)
    except ValueError:
        raise Unsupported(f"holds {quoted(name)} of GGML type {kind}, which is not known here: upgrade the gguf package.") from None
    block, size = GGML_QUANT_SIZES[found]
    return found.name, block, size
