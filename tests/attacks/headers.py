"""Hostile safetensors files, each with the reason it must be refused."""

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Attack:
    """A hostile file and the reason why it must be refused. ours_alone: the safetensors library accepts it, and Mantissa does not."""

    name: str
    reason: str
    data: bytes
    ours_alone: bool = False


def framed(header: bytes, data: bytes = b"") -> bytes:
    """Make a file of this header and data, with the true length in front."""
    return len(header).to_bytes(8, "little") + header + data


def described(header: dict[str, Any], data: int = 0) -> bytes:
    """Make a file of this header and ``data`` zero bytes."""
    return framed(json.dumps(header).encode(), bytes(data))


def tensor(shape: Any, start: Any, stop: Any, dtype: Any = "F32") -> dict[str, Any]:
    """Describe a tensor for the header."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


_ONE = b'{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'

ATTACKS = [
    Attack("empty", "no byte at all", b""),
    Attack("longer_than_file", "the header would end behind the file", (1000).to_bytes(8, "little") + b"{}"),
    Attack("giant_length", "2^64 - 1 bytes of header", b"\xff" * 8 + b"{}"),
    Attack("git_lfs_pointer", "text in place of weights", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4\n"),
    Attack("not_utf8", "bytes that are no text", framed(b'{"\xff":' + _ONE + b"}", bytes(4))),
    Attack("not_json", "JSON that stops", framed(b'{"a":')),
    Attack("list", "JSON that is no object", framed(b"[]")),
    Attack("deep_lists", "lists nested 100,000 deep", framed(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}")),
    Attack(
        "duplicate_unusable",
        "an unknown dtype, replaced",
        framed(b'{"a":' + _ONE.replace(b"F32", b"F99") + b',"a":' + _ONE + b"}", bytes(4)),
    ),
    Attack("duplicate_field", "two shapes", framed(b'{"a":{"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4]}}', bytes(4))),
    Attack("half_surrogate", "a name that is no text", framed(b'{"\\ud800":' + _ONE + b"}", bytes(4))),
    Attack("tensor_without_name", "the description where the list should be", framed(_ONE, bytes(4))),
    Attack("tensor_as_list", "fields without names", framed(b'{"a":["F32",[1],[0,4]]}', bytes(4)), ours_alone=True),
    Attack("unknown_dtype", "F128", described({"a": tensor([1], 0, 16, "F128")}, 16)),
    Attack("dtype_number", "a dtype that is no text", described({"a": tensor([1], 0, 4, 7)}, 4)),
    Attack("dtype_list", "a dtype that cannot be looked up", described({"a": tensor([1], 0, 4, ["F32"])}, 4)),
    Attack("shape_number", "a shape that is no list", described({"a": tensor(1, 0, 4)}, 4)),
    Attack("negative_shape", "(-1) x (-1) is 1", described({"a": tensor([-1, -1], 0, 4)}, 4)),
    Attack("minus_zero", "-0 is no whole number", framed(b'{"a":{"dtype":"F32","shape":[-0],"data_offsets":[0,0]}}')),
    Attack("float_shape", "1.0 is no whole number", described({"a": tensor([1.0], 0, 4)}, 4)),
    Attack("true_shape", "true is not 1", described({"a": tensor([True], 0, 4)}, 4)),
    Attack("overflow", "2^64 elements are 0 elements, modulo 2^64", described({"a": tensor([1 << 32, 1 << 32], 0, 0)})),
    Attack("overflow_before_zero", "an overflow hidden by a later 0", described({"a": tensor([1 << 63, 4, 0], 0, 0)})),
    Attack("overflow_bits", "2^62 elements of 32 bits", described({"a": tensor([1 << 62], 0, 0)})),
    Attack("huge_shape", "a number of 4,000 digits", framed(b'{"a":{"dtype":"U8","shape":[' + b"9" * 4000 + b'],"data_offsets":[0,0]}}')),
    Attack("three_offsets", "three offsets", described({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 4]}}, 4)),
    Attack("reversed_offsets", "an end before its start", described({"a": tensor([0], 4, 0)}, 4)),
    Attack("negative_offset", "bytes of the header as data", described({"a": tensor([2], -4, 4)}, 4)),
    Attack("overlap", "two tensors in the same bytes", described({"a": tensor([2], 0, 8), "b": tensor([2], 4, 12)}, 12)),
    Attack("hole", "4 bytes that belong to nothing", described({"a": tensor([1], 0, 4), "b": tensor([1], 8, 12)}, 12)),
    Attack("trailing_bytes", "a file within the file", described({"a": tensor([1], 0, 4)}, 400)),
    Attack("truncated", "the file stops inside a tensor", described({"a": tensor([100], 0, 400)}, 399)),
    Attack("wrong_size", "4 bytes for two numbers of 4", described({"a": tensor([2], 0, 4)}, 4)),
    Attack("scalar_of_nothing", "a scalar has one element", described({"a": tensor([], 0, 0)})),
    Attack("sub_byte_size", "three numbers of 6 bits in 3 bytes", described({"a": tensor([3], 0, 3, "F6_E2M3")}, 3)),
    Attack("metadata_number", "metadata is text", described({"__metadata__": {"a": 1}})),
    Attack("metadata_twice", "metadata given twice", framed(b'{"__metadata__":{"a":"b"},"__metadata__":{"a":"c"}}')),
    Attack("long_name", "a name of 100,000 characters", described({"a" * 100_000: tensor([1], 0, 4)}, 4), ours_alone=True),
    Attack("many_dimensions", "10,000 dimensions", described({"a": tensor([1] * 10_000, 0, 4)}, 4), ours_alone=True),
    Attack(
        "metadata_flood",
        "400,000 entries of metadata",
        framed(b'{"__metadata__":{' + b",".join(b'"%d":""' % i for i in range(400_000)) + b"}}"),
        ours_alone=True,
    ),
    Attack(
        "metadata_flood_under_fewer_braces",
        "a brace in every fourth name, which makes them few enough for tensors",
        framed(b'{"__metadata__":{' + b",".join(b'"%s%d":""' % (b"" if i % 4 else b"{{", i) for i in range(300_000)) + b"}}"),
        ours_alone=True,
    ),
    Attack(
        "metadata_flood_escaped",
        "the same under a name that is spelled otherwise",
        framed(b'{"__\\u006detadata__":{' + b",".join(b'"%d":""' % i for i in range(400_000)) + b"}}"),
        ours_alone=True,
    ),
    Attack("metadata_long", "17 MB of metadata in one text", described({"__metadata__": {"a": "b" * 17_000_000}}), ours_alone=True),
    Attack(
        "metadata_wide",
        "one character beyond ASCII makes each of 33 million take four bytes",
        framed(b'{"__metadata__":{"' + b"{" * 40_000 + "\U0001f917".encode() + b"a" * 33_000_000 + b'":""}}'),
        ours_alone=True,
    ),
    Attack("comma_flood", "ten million numbers in one shape", framed(b'{"a":[' + b"1," * 10_000_000 + b"1]}")),
]
