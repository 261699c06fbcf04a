"""Options: how a field of a request is offered on the command line, on the page, in its address, and to programs.

The field is the only declaration: name, type, default, bounds and description are pydantic's, and an `Option` in its ``Annotated`` metadata
adds what these do not say. A field without a description is for Python alone.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from analyzers.core.errors import InvalidRequest

_SHOWN = 60  # Characters of a refused value that the error quotes.


@dataclass(frozen=True, slots=True)
class Option:
    """Presentation of a request's field, beyond what pydantic declares.

    command: offered on the command line; site: offered on the page, in its address, and as a parameter of endpoints.
    one: the word for one value of a field with several, each an argument of the command and a key of the address.
    added: offered last, since endpoints are also called with parameters by position.
    metavar: placeholder of a text that the request itself parses; alias: another flag; off: help of ``--no-NAME``; more: ends ``--help``.
    label, info: of the widget (default: the name, the description); example: shown while the widget is empty (default: the default value);
    names: labels of the choices; dropdown: draw the choices as a dropdown instead of a row of buttons; suggested: values that the widget of
    a list of texts offers; lines: the text may have several lines.
    parse, write: read the field from a text of several lines, and write it, where it is neither a text nor a number; word: stands for such
    a value in a command; each: the flag of one value, for a list whose values may have commas.
    """

    label: str = ""
    info: str | None = None
    example: str | None = None
    names: tuple[str, ...] = ()
    dropdown: bool = False
    suggested: tuple[str, ...] = ()
    lines: bool = False
    parse: Callable[[str], Any] | None = None
    write: Callable[[Any], str] | None = None
    word: str = ""
    each: str = ""
    command: bool = True
    site: bool = True
    added: bool = False
    one: str = ""
    metavar: str = ""
    alias: str = ""
    off: str = ""
    more: str = ""


def option_of(request: type[BaseModel], name: str) -> Option:
    """Return the option of a field, or a default one if the field declares none."""
    return next((each for each in reversed(request.model_fields[name].metadata) if isinstance(each, Option)), Option())


def describe(request: type[BaseModel], name: str) -> str:
    """Describe a field in a sentence for ``--help``, the API and MCP, with its default if that is a text or a number."""
    field = request.model_fields[name]
    text, default = field.description or "", field.default
    if isinstance(default, bool) or not isinstance(default, int | float | str):
        return text
    return f"{text.removesuffix('.')} (default {default if isinstance(default, str) else f'{default:.12g}'})."


def is_subject(request: type[BaseModel], name: str) -> bool:
    """Tell whether a field names what is analyzed: it is required, or takes several names. Such fields are arguments of the command."""
    return request.model_fields[name].is_required() or bool(option_of(request, name).one)


def offered(request: type[BaseModel], where: Literal["command", "site"]) -> list[str]:
    """Return the names of the fields offered on the command line or the site, subjects first.

    On the command line the request's own fields precede the inherited ones.
    """
    names = [name for name, field in request.model_fields.items() if field.description and getattr(option_of(request, name), where)]
    own = request.__annotations__ if where == "command" else names
    return sorted(names, key=lambda name: (not is_subject(request, name), option_of(request, name).added, name not in own))


def is_list(request: type[BaseModel], name: str) -> bool:
    """Tell whether a field holds several values."""
    return get_origin(request.model_fields[name].annotation) is tuple


def choices(request: type[BaseModel], name: str) -> tuple[str, ...]:
    """Return the allowed values of a field that is a Literal or a tuple of Literals; () for any other field."""
    annotation = request.model_fields[name].annotation
    kind = get_args(annotation)[0] if is_list(request, name) else annotation
    return get_args(kind) if get_origin(kind) is Literal else ()


def title(request: type[BaseModel], name: str) -> str:
    """Return what a page calls a field in a sentence: its label without what explains it, or its name in words."""
    return re.split(r":| \(", option_of(request, name).label)[0] or name.replace("_", " ").capitalize()


def parse(request: type[BaseModel], name: str, text: str, named: str) -> Any:
    """Parse a text for a field: a number (25% is 0.25), a tuple separated by commas, or else the text itself.

    named: what the user calls the field. Raises InvalidRequest.
    """
    annotation = request.model_fields[name].annotation
    types = get_args(annotation) or (annotation,)
    if is_list(request, name):
        parts = tuple(part.strip() for part in text.split(","))
        return tuple(_number(float, part, named, "numbers separated by commas") for part in parts) if float in types else parts
    if option_of(request, name).metavar or not {int, float} & set(types):
        return text
    if int in types:
        return _number(int, text, named, "a whole number")
    return _number(float, text.removesuffix("%"), named, "a number") / (100 if text.endswith("%") else 1)


def _number(kind: type[int] | type[float], text: str, named: str, needed: str) -> Any:
    try:
        if text.isascii():
            return kind(text)
    except ValueError:
        pass
    raise InvalidRequest(f"{named} must be {needed}, not {text[:_SHOWN]!r}.")
