"""Parses JSON from files, repositories and visitors, bounded before it is parsed, since parsed values take 30 times their text.

No other module parses JSON that the program did not just write itself (`tests/test_untrusted_json.py`).
"""

import json
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from analyzers.core import limits

if TYPE_CHECKING:
    from pydantic import BaseModel

JSON_VALUES = 2_000_000  # Values of one JSON text from outside: each takes up to 100 bytes in memory.

_Model = TypeVar("_Model", bound="BaseModel")

_DIGITS = 308  # digits; float64 holds every number with this many
# Byte patterns of numbers that Python's json must be checked for, after all digits are mapped to 0. Searching bytes takes linear time; a
# regular expression would also block all other threads.
_SHAPE = bytes.maketrans(b"123456789E", b"000000000e")
_LONG = (b"0" * _DIGITS, b"e000", b"e+000")
_ESCAPED = (b"\\ud", b"\\uD")


class InvalidJson(ValueError):
    """A text that is not accepted as JSON. ``str(error)`` is a clause: "is not UTF-8 at byte 7"."""


class JsonTooLarge(InvalidJson):
    """JSON beyond JSON_VALUES or limits.JSON_DEPTH, which other programs may well read."""


def parse_json(
    text: str | bytes | bytearray | memoryview,
    *,
    values: int | None = JSON_VALUES,
    lenient: bool = False,
    object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None,
    parse_int: Callable[[str], Any] | None = None,
) -> Any:
    """Parse JSON in UTF-8, with or without a byte order mark; the last of two values of one name counts, as in every library.

    values: most values that it may hold; None if the caller has bounded it. lenient: accept what Python's json, and therefore transformers,
    does: NaN, infinities, numbers of any size, half surrogate pairs. The hooks are those of `json.loads`. Raises InvalidJson and its
    subclass JsonTooLarge.
    """
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else bytes(text)
    if values is not None:
        check_counts(raw, values)
    try:
        decoded = text if isinstance(text, str) else str(raw, "utf-8-sig")
        hooks: dict[str, Any] = {"object_pairs_hook": object_pairs_hook, "parse_int": parse_int}
        if not lenient:
            hooks["parse_constant"] = _constant
            shape = raw.translate(_SHAPE)
            if any(long in shape for long in _LONG):
                hooks |= {"parse_int": parse_int or _whole, "parse_float": _float}
        parsed = json.loads(decoded, **hooks)
        if not lenient and any(escaped in raw for escaped in _ESCAPED):
            json.dumps(parsed, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidJson("holds half a surrogate pair") from None
    except UnicodeDecodeError as error:
        raise InvalidJson(f"is not UTF-8 at byte {error.start:,}") from None
    except RecursionError:
        raise _too_deep() from None
    except json.JSONDecodeError as error:
        raise InvalidJson(f"is not JSON ({error.msg} at character {error.pos:,})") from error
    except InvalidJson:
        raise
    except ValueError:  # the interpreter's own limit on the digits of a number
        raise InvalidJson("holds a number of thousands of digits") from None
    return parsed


def parse_model(kind: type[_Model], text: str | bytes) -> _Model:
    """Parse JSON as a pydantic model, which is several times as fast as parsing and validating. Raises InvalidJson and pydantic's error."""
    check_counts(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)
    return kind.model_validate_json(text)


def check_counts(raw: bytes, values: int = JSON_VALUES) -> None:
    """Raise JsonTooLarge if JSON holds more than ``values`` values, or lists and objects nested more than limits.JSON_DEPTH deep."""
    opened = raw.count(b"[") + raw.count(b"{")
    if opened <= limits.JSON_DEPTH and opened + raw.count(b",") < values:
        return
    text = np.frombuffer(raw.replace(rb"\\", b"").replace(rb"\"", b""), np.uint8)
    bare = text[np.bitwise_xor.accumulate((text == ord('"')).view(np.uint8)) == 0]  # the text outside strings
    opens, closes = (bare == ord("[")) | (bare == ord("{")), (bare == ord("]")) | (bare == ord("}"))
    if np.count_nonzero(opens) + np.count_nonzero(bare == ord(",")) >= values:
        raise JsonTooLarge(f"holds more than {values:,} values")
    steps = opens.view(np.int8) - closes.view(np.int8)
    if np.cumsum(steps[steps != 0], dtype=np.int32).max(initial=0) > limits.JSON_DEPTH:
        raise _too_deep()


def _whole(text: str) -> int:
    if len(text) > _DIGITS:
        raise InvalidJson(f"holds a number of {len(text):,} digits")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise InvalidJson("holds a number beyond the range of float64")
    return value


def _constant(text: str) -> NoReturn:
    raise InvalidJson(f"holds {text}, which JSON does not have")


def _too_deep() -> JsonTooLarge:
    return JsonTooLarge(f"is nested more than {limits.JSON_DEPTH:,} levels deep")
