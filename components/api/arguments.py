"""Arguments of programs as fields of a form: checks of their types, with one sentence for a wrong one."""

from typing import Any

from analyzers.errors import InvalidRequest


def text_of(name: str, value: Any) -> str:
    """A string; null is empty. Raises InvalidRequest."""
    if value is not None and not isinstance(value, str):
        raise InvalidRequest(f"{name} must be a text, not {kind_of(value)}.")
    return value or ""


def number_of(name: str, value: Any, fractions: bool = False) -> str:
    """A number, or a string with one, as a string. JSON has no integers: 1.0 is 1. Raises InvalidRequest."""
    if isinstance(value, float) and (value.is_integer() or fractions):
        value = int(value) if value.is_integer() else repr(value)
    if value is not None and (isinstance(value, bool) or not isinstance(value, str | int)):
        raise InvalidRequest(f"{name} must be a text or a {'' if fractions else 'whole '}number, not {kind_of(value)}.")
    return "" if value is None else str(value)


def flag_of(name: str, value: Any, default: bool) -> bool:
    """True or false; null is the default. Raises InvalidRequest."""
    if value is not None and not isinstance(value, bool):
        raise InvalidRequest(f"{name} must be true or false, not {kind_of(value)}.")
    return default if value is None else value


def list_of(name: str, value: Any) -> list[Any]:
    """A list; null is empty. Raises InvalidRequest."""
    if value is not None and not isinstance(value, list):
        raise InvalidRequest(f"{name} must be a list, not {kind_of(value)}.")
    return value or []


def kind_of(value: Any) -> str:
    """The JSON type of ``value``, for a sentence."""
    kinds = {bool: "true or false", int: "a number", float: "a fraction", str: "a text", list: "a list", dict: "an object"}
    return kinds.get(type(value), "this")
