"""Parse numbers typed into a field."""

from analyzers.errors import InvalidRequest
from components.forms.links import SHOWN


def whole(name: str, text: str) -> int:
    """Parse an integer for the field ``name``. Raises InvalidRequest."""
    try:
        return int(text) if len(text) <= 20 and text.isascii() else _refuse(name, text, "whole ")
    except ValueError:
        return _refuse(name, text, "whole ")


def fraction(name: str, text: str) -> float:
    """Parse a number or a percentage for the field ``name``. Raises InvalidRequest."""
    plain = text.removesuffix("%").strip()
    try:
        value = float(plain)
    except ValueError:
        return _refuse(name, text)
    return value / 100 if plain != text else value


def _refuse(name: str, text: str, kind: str = "") -> int:
    raise InvalidRequest(f"{text[:SHOWN]!r} is no {kind}number: {name.replace('_', ' ')} takes one.")
