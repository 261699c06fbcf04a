"""Parses JSON from files, repositories and visitors, bounded before it is parsed, since parsed values take 30 times their text.

No other module parses JSON that the program did not just write itself (`tests/test_untrusted_json.py`).
"""

import json
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from analyzers.core import limits

if TYPE_CHECKING:
    from pydantic import BaseModel

JSON_VALUES = 2_000_000  # Values of one JSON text from outside: each takes up to 100 bytes in memory.

_Model = TypeVar("_Model", bound="BaseModel")

_DIGITS = 308  # digits; float64 holds every number with this many


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
    hooks: dict[str, Any] = {"object_pairs_hook": object_pairs_hook, "parse_int": parse_int}
    if not lenient:
        hooks |= {"parse_constant": _constant, "parse_int": parse_int or _whole, "parse_float": _float}
    try:
        parsed = json.loads(text if isinstance(text, str) else str(raw, "utf-8-sig"), **hooks)
        if values is not None and raw.count(b"[") + raw.count(b"{") > limits.JSON_DEPTH:
            _check_depth(parsed)
        if not lenient and b"\\ud" in raw.lower():
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
    """Raise JsonTooLarge if JSON may hold more than ``values`` values: commas and opening brackets are counted, in text too."""
    if raw.count(b",") + raw.count(b"[") + raw.count(b"{") >= values:
        raise JsonTooLarge(f"holds more than {values:,} values")


def _check_depth(parsed: Any) -> None:
    """Raise JsonTooLarge if lists and objects are nested more than limits.JSON_DEPTH deep."""
    level = [parsed]
    for _ in range(limits.JSON_DEPTH + 1):
        parts = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list))
        level = [part for each in parts for part in each]
        if not level:
            return
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
