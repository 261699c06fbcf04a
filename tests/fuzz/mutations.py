"""Mutates bytes for the fuzzer, as damage or malice would, with a seeded generator."""

import json
import struct
from collections.abc import Sequence
from copy import deepcopy
from random import Random
from typing import Any

# Tokens that often break parsers, for formats in JSON and for binary ones.
JSON_TOKENS: tuple[bytes, ...] = (
    b"{", b"}", b"[", b"]", b",", b":", b'"', b'\\"', b"\\", b"null", b"true", b"-0", b"1e999", b"1e-999", b"NaN", b"-Infinity", b"0.1",
    b'""', b"{}", b"[]", b"[" * 60, b"]" * 60, b"[" * 2000, b"{" * 2000, b"\xef\xbb\xbf", b"\xff\xfe", b"\xed\xa0\x80", b'"\\ud800"',
    b"\\u0000",
    b"\\u202e", b"9" * 19, b"9" * 400, b"9" * 5000, b"18446744073709551615", b"-1", b"\0", b"\n", b"\r", b"\xe2\x80\xae",
    b"\xf0\x9f\xa4\x97",
    b'"__metadata__":', b'"dtype":', b'"a":1,"a":2', b"..", b"/", b"../", b".safetensors",
)  # fmt: skip
BINARY_TOKENS: tuple[bytes, ...] = (
    *(struct.pack("<Q", value) for value in (0, 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)),
    *(struct.pack("<I", value) for value in (0, 1, 8, 9, 2**31 - 1, 2**32 - 1)),
    bytes(64), b"\xff" * 16, b"a" * 5000,
)  # fmt: skip
# Opcodes of pickles: memo, marks, containers, calls, numbers, ends.
PICKLE_TOKENS: tuple[bytes, ...] = (
    b"(", b")", b"t", b"l", b"d", b"}", b"]", b"a", b"e", b"s", b"u", b"0", b"1", b"2", b"R", b"b", b"Q", b".", b"N", b"\x81", b"\x85",
    b"\x86",
    b"\x88", b"\x8f", b"\x90", b"\x91", b"\x94", b"q\0", b"q\1", b"h\0", b"h\1", b"h\xff", b"r\xff\xff\xff\xff", b"K\x04", b"K\0",
    b"J\xff\xff\xff\xff",
    b"M\xff\xff", b"\x8a\x01\xff", b"\x8b\xff\xff\xff\x7f", b"G\x7f\xf8\0\0\0\0\0\0", b"I01\n", b"I9999999999999999999\n", b"L5L\n",
    b"F1e999\n",
    b"V\\ud800\n", b"X\x01\0\0\0a", b"X\xff\xff\xff\x7f", b"\x8c\x01a", b"\x8d" + b"\xff" * 8, b"ccollections\nOrderedDict\n",
    b"ctorch\nFloatStorage\n", b"ctorch\nbfloat16\n", b"ctorch._utils\n_rebuild_tensor_v2\n", b"ctorch._utils\n_rebuild_parameter\n",
    b"cos\nsystem\n",
    b"c__builtin__\nset\n", b"\x95" + b"\xff" * 8, b"\x82\1", b"\x93", b"(" * 300, b"]" * 300, b"}" * 300,
)  # fmt: skip


def mutated(random: Random, seeds: Sequence[bytes], tokens: Sequence[bytes], most: int = 6) -> bytes:
    """Return one of ``seeds`` after 1 to ``most`` changes. tokens: bytes to insert in addition to random ones."""
    data = bytearray(random.choice(seeds))
    for _ in range(random.randint(1, most)):
        at = random.randrange(len(data) + 1)
        length = min(random.choice((1, 1, 2, 4, 8, 30, 200)), len(data) - at)
        match random.randrange(9):
            case 0 if at < len(data):
                data[at] ^= 1 << random.randrange(8)
            case 1 if at < len(data):
                data[at] = random.randrange(256)
            case 2:
                del data[at : at + length]
            case 3:
                data[at:at] = data[at : at + length] * random.choice((1, 1, 2, 100))
            case 4:
                data[at:at] = random.choice(tokens)
            case 5:
                token = random.choice(tokens)
                data[at : at + len(token)] = token
            case 6:
                other = random.choice(seeds)
                begin = random.randrange(len(other) + 1)
                data[at : at + length] = other[begin : begin + random.randrange(300)]
            case 7:
                del data[at:]
            case _:
                swap = random.randrange(len(data) + 1)
                data[at : at + length], data[swap : swap + length] = data[swap : swap + length], data[at : at + length]
    return bytes(data)


def mutated_json(random: Random, seeds: Sequence[bytes]) -> bytes:
    """Replace, move and repeat values of JSON. The result is valid JSON, so that it reaches the code that reads the values."""
    try:
        value = json.loads(random.choice(seeds))
    except ValueError:
        return mutated(random, seeds, JSON_TOKENS)
    for _ in range(random.randint(1, 3)):
        value = _changed(random, value)
    return json.dumps(value, ensure_ascii=random.random() < 0.5).encode("utf-8", "surrogatepass")


_ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, 2**31, 2**63, 2**64, 10**30, 10**300, float("nan"), float("inf"), 1e308, "", "a", "\ud800", "\0",
    "a\nb", "\u202e",
    "../..", "/etc/passwd", "x" * 5000, [], {}, [[]], [None], {"": None}, ["a", 1], {"a": {"a": {"a": {}}}}, list(range(300)),
    "model.safetensors",
    "float16", "bfloat16", "auto", "\U0001f917",
)  # fmt: skip


def _changed(random: Random, value: Any) -> Any:
    """Copy ``value`` with one change."""
    if not isinstance(value, dict | list) or not value or random.random() < 0.15:
        return deepcopy(random.choice(_ODD))
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = random.choice(keys)
    if random.random() < 0.6:
        value[key] = _changed(random, value[key])
    elif random.random() < 0.4:
        del value[key]
    elif isinstance(value, dict):
        value[random.choice((f"{key}x", "", "\ud800", "a.b", "__class__", "model_type"))] = deepcopy(value[key])
    else:
        value.insert(key, deepcopy(random.choice((value[key], value, [value[key]], random.choice(_ODD)))))
    return value
