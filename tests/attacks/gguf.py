"""Hostile GGUF files, each with the reason it must be refused."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

UINT8, UINT32, FLOAT32, STRING, LIST, UINT64 = 0, 4, 6, 8, 9, 10
F32, Q4_0, Q4_K = 0, 2, 12


@dataclass(frozen=True)
class Attack:
    """A hostile file and the reason why it must be refused."""

    name: str
    reason: str
    data: bytes


def text(value: bytes | str, length: int | None = None) -> bytes:
    """Encode a string after its length, or after a false one."""
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw) if length is None else length) + raw


def entry(key: bytes | str, kind: int, value: bytes) -> bytes:
    """Encode an entry of the metadata."""
    return text(key) + struct.pack("<I", kind) + value


def items(kind: int, length: int, value: bytes = b"") -> bytes:
    """Encode the value of a list."""
    return struct.pack("<IQ", kind, length) + value


def tensor(name: bytes | str, shape: Sequence[int], offset: int = 0, kind: int = F32, dimensions: int | None = None) -> bytes:
    """Encode the description of a tensor. shape: the innermost length first."""
    lengths = struct.pack(f"<{len(shape)}Q", *shape)
    return text(name) + struct.pack("<I", len(shape) if dimensions is None else dimensions) + lengths + struct.pack("<IQ", kind, offset)


def framed(
    entries: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: int = 0,
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    counts: tuple[int, int] | None = None,
    alignment: int = 32,
) -> bytes:
    """Make a file of these parts, with true counts or false ones, and ``data`` zero bytes after the padding."""
    tensor_count, entry_count = counts or (len(tensors), len(entries))
    header = magic + struct.pack("<IQQ", version, tensor_count, entry_count) + b"".join(entries) + b"".join(tensors)
    return header + bytes(-len(header) % alignment) + bytes(data)


def nested(depth: int) -> bytes:
    """Encode a list nested to this depth."""
    return items(LIST, 1) * depth + items(UINT8, 0)


_A = tensor("a", [4])
_HUGE = 1 << 63

ATTACKS = [
    Attack("empty", "no byte at all", b""),
    Attack("other_magic", "GGML's older format", framed(magic=b"ggjt")),
    Attack("version_1", "lengths of 32 bits", framed(version=1)),
    Attack("big_endian", "bytes the other way round", framed(version=3 << 24)),
    Attack("tensor_count", "2^63 tensors", framed(tensors=[_A], data=16, counts=(_HUGE, 0))),
    Attack("one_more_tensor", "a tensor that is not described", framed(tensors=[_A], data=16, counts=(2, 0))),
    Attack("entry_count", "2^63 entries", framed(counts=(0, _HUGE))),
    Attack("entry_flood", "100,000 entries", framed([entry(str(i), UINT8, b"\0") for i in range(100_000)])),
    Attack("key_length", "a key of 2^63 bytes", framed([text("a", _HUGE) + bytes(64)])),
    Attack("key_long", "a key of a million bytes", framed([entry(b"a" * 1_000_000, UINT8, b"\0")])),
    Attack("key_not_text", "a key that is not UTF-8", framed([entry(b"\xff\xfe", UINT8, b"\0")])),
    Attack("key_twice", "one key, two values", framed([entry("a", UINT8, b"\0"), entry("a", UINT8, b"\1")])),
    Attack("type_unknown", "a value of type 13", framed([entry("a", 13, bytes(64))])),
    Attack("string_end", "a string that ends behind the file", framed([entry("a", STRING, text("abc", 4_000))])),
    Attack("list_length", "2^63 numbers", framed([entry("a", LIST, items(UINT64, _HUGE))])),
    Attack("list_overflow", "2^61 numbers of 8 bytes are 0 bytes, modulo 2^64", framed([entry("a", LIST, items(UINT64, 1 << 61))])),
    Attack("list_of_strings", "2^63 strings", framed([entry("a", LIST, items(STRING, _HUGE))])),
    Attack("list_of_some_strings", "a million strings in no bytes", framed([entry("a", LIST, items(STRING, 1_000_000))])),
    Attack("list_of_a_huge_string", "one of its strings has 2^63 bytes", framed([entry("a", LIST, items(STRING, 2, text("", _HUGE)))])),
    Attack("nested_lists", "lists 100,000 deep", framed([entry("a", LIST, nested(100_000))])),
    Attack("many_empty_lists", "ten million lists of nothing", framed([entry("a", LIST, items(LIST, 10_000_000, items(UINT8, 0) * 100))])),
    Attack("alignment_0", "no alignment", framed([entry("general.alignment", UINT32, struct.pack("<I", 0))], [_A], 16)),
    Attack("alignment_3", "an alignment of 3", framed([entry("general.alignment", UINT32, struct.pack("<I", 3))], [_A], 16)),
    Attack("alignment_huge", "2^31", framed([entry("general.alignment", UINT32, struct.pack("<I", 1 << 31))], [_A], 16)),
    Attack("name_length", "a tensor's name of 2^63 bytes", framed(tensors=[text("a", _HUGE) + bytes(64)])),
    Attack("name_not_text", "a tensor's name that is not UTF-8", framed(tensors=[tensor(b"\xc3", [4])], data=16)),
    Attack("name_twice", "one name, two tensors", framed(tensors=[_A, tensor("a", [4], 32)], data=64)),
    Attack("dimensions", "2^32 - 1 dimensions", framed(tensors=[tensor("a", [4], dimensions=0xFFFFFFFF)], data=16)),
    Attack("five_dimensions", "one more than ggml has", framed(tensors=[tensor("a", [1] * 5)], data=16)),
    Attack("overflow", "2^64 elements are 0, modulo 2^64", framed(tensors=[tensor("a", [1 << 32, 1 << 32])], data=16)),
    Attack("overflow_bytes", "2^62 elements of 4 bytes", framed(tensors=[tensor("a", [1 << 62])], data=16)),
    Attack("kind_unknown", "GGML type 10,000", framed(tensors=[tensor("a", [4], kind=10_000)], data=16)),
    Attack("part_of_a_block", "16 of the 32 weights of a block", framed(tensors=[tensor("a", [16, 2], kind=Q4_0)], data=64)),
    Attack("offset_huge", "data far behind the file", framed(tensors=[tensor("a", [4], _HUGE)], data=16)),
    Attack("offset_unaligned", "an offset off the alignment", framed(tensors=[tensor("a", [4], 4)], data=64)),
    Attack("overlap", "two tensors in the same bytes", framed(tensors=[tensor("a", [16]), tensor("b", [16], 32)], data=128)),
    Attack("hole", "bytes that belong to nothing", framed(tensors=[_A, tensor("b", [4], 64)], data=128)),
    Attack("order", "tensors in another order than their data", framed(tensors=[tensor("a", [4], 32), tensor("b", [4], 0)], data=64)),
    Attack("truncated", "the file stops inside a tensor", framed(tensors=[tensor("a", [100])], data=399)),
    Attack("no_data", "the file stops in front of its data", framed(tensors=[_A])),
]
