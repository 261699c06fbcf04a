"""Forms: the fields of a page as typed, as a request, as a link and as a command.

A form is a frozen dataclass whose fields are named as in the request. An empty text means the default. A query string is as untrusted as
what is typed: it only fills in the form, and the request validates it.
"""

import difflib
import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from typing import Any, Protocol, TypeVar, get_args
from urllib.parse import urlencode

from pydantic import BaseModel, ValidationError

from analyzers import limits
from analyzers.base import CheckpointFacts, Request, WeightsRequest, request_error
from analyzers.errors import InvalidRequest

Query = Sequence[tuple[str, str]]
SHOWN = 60
# Sources of text; an analyzer may add more.
BUILTIN, DATASET, RANDOM = "builtin", "dataset", "random"
# Longer texts are omitted from links: browsers and proxies truncate long URLs.
LINKED_CHARACTERS = 4_000
# Fields of `WeightsRequest` on every form about weights, in the order of links and endpoints.
READING = ("mode", "budget", "include", "exclude", "subfolder", "seed")
# Keys of addresses that are no parameters of a request: one of several values, a commit, the result alone.
_ADDED = ("candidate", "variant", "revision", "embed")
_Request = TypeVar("_Request", bound=BaseModel)
_Form = TypeVar("_Form")


@dataclass(frozen=True, slots=True)
class Cost:
    """What a run costs. less: how to make it smaller. tokens: the most that a request runs through the model, over all passes."""

    less: str
    tokens: Callable[[Any], int] = lambda request: 0


# Of what a run takes its time for: the least of each.
_LEAST = {"samples": 4, "max_length": 64, "sequences": 1, "sequence_length": 64, "seeds": 1}


def smaller(request: Any) -> Any:
    """The same request with half of the text and seeds; None if it is as small as it gets."""
    less = {name: max(least, getattr(request, name) // 2) for name, least in _LEAST.items() if getattr(request, name, least) > least}
    return request.model_copy(update=less) if less else None


class Form(Protocol):
    """The fields of a page, as typed."""

    def request(self) -> Request:
        """The validated request. Raises MantissaError with the sentence to show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingForm:
    """How many weights to read and which: the fields of every form about weights, after its own."""

    mode: str = "quick"
    budget: str = ""
    include: str = ""
    exclude: str = ""
    subfolder: str = ""
    seed: str = "0"


def form_fields(kind: Any) -> list[Field[Any]]:
    """The fields of a form in the order of the page: its own, then those of `ReadingForm`."""
    return sorted(fields(kind), key=lambda field: field.kw_only is True)


def values(form: Any) -> list[Any]:
    """The value of each field, for the page."""
    held: list[Any] = [getattr(form, field.name) for field in form_fields(form)]
    return [list(value) if isinstance(value, tuple) else value for value in held]


def form_of(kind: type[_Form], given: Sequence[Any]) -> _Form:
    """The form with these values of its fields. Values are converted defensively: the page may send any type."""
    return kind(**{field.name: _as_typed(field.default, value) for field, value in zip(form_fields(kind), given, strict=True)})


def typed(value: Any) -> str:
    """The value of a field as text; the page sends null for an empty field."""
    return "" if value is None else str(value)


def _as_typed(default: Any, value: Any) -> Any:
    if isinstance(default, bool):
        return value if isinstance(value, bool) else default
    if isinstance(default, tuple):
        return tuple(map(typed, value)) if isinstance(value, list) else ()
    return typed(value)


def validated(kind: type[_Request], form: Any, names: Iterable[str], **given: Any) -> _Request:
    """The validated request from the fields ``names`` of a form, as typed, and from ``given``.

    Raises InvalidRequest with the sentence to show, in which fields are named in words.
    """
    asked = given | parsed(form, kind, names)
    try:
        return _sentence(lambda: kind(**asked))
    except InvalidRequest as error:
        said = re.sub(rf"\b({'|'.join(kind.model_fields)})\b", lambda name: name[0].replace("_", " "), str(error), flags=re.IGNORECASE)
        raise InvalidRequest(said) from None


def validated_json(kind: type[_Request], given: dict[str, Any]) -> _Request:
    """The validated request of a JSON object, with its types: "no" is not false. Raises InvalidRequest with the sentence to show."""
    return _sentence(lambda: kind.model_validate_json(json.dumps(given), strict=True))


def _sentence(made: Callable[[], _Request]) -> _Request:
    try:
        return made()
    except ValidationError as error:
        said = str(request_error(error))
        raise InvalidRequest(said[:1].upper() + said[1:]) from None


def parsed(form: Any, kind: type[BaseModel], names: Iterable[str]) -> dict[str, Any]:
    """The fields ``names`` of ``form`` that are not empty, each as the type it has in the request. Raises InvalidRequest."""
    given = {name: getattr(form, name) for name in names}
    if given.get("mode") == "exact":  # which reads everything: the page disregards the budget
        given.pop("budget", None)
    return {
        name: value if isinstance(value, bool) else _number(kind, name, value.strip())
        for name, value in given.items()
        if isinstance(value, bool) or value.strip()
    }


def _number(kind: type[BaseModel], name: str, text: str) -> Any:
    annotation = kind.model_fields[name].annotation
    types = get_args(annotation) or (annotation,)
    if name == "budget" or not {int, float} & set(types):
        return text
    percent = text.endswith("%") and float in types
    try:
        if int in types:
            return int(text) if len(text) <= 20 and text.isascii() else _refuse(name, text, "a whole number")
        return float(text.removesuffix("%")) / 100 if percent else float(text)
    except ValueError:
        return _refuse(name, text, "a whole number" if int in types else "a number")


def _refuse(name: str, text: str, kind: str) -> Any:
    raise InvalidRequest(f"{name.replace('_', ' ').capitalize()} must be {kind}, not {text[:SHOWN]!r}.")


def references(text: str, most: int) -> list[str]:
    """Split ``text`` at commas, semicolons and whitespace. Raises InvalidRequest if it is longer than ``most`` references."""
    if len(text) > most * (limits.REFERENCE_LENGTH + 2):
        raise InvalidRequest(f"{len(text):,} characters are more than {most} model ids have: paste the ids only.")
    return re.findall(r"[^\s,;]+", text)


def one_model(text: str, several: str) -> str:
    """Parse a single reference. Raises InvalidRequest if there is none, or with the message ``several`` if there is more than one."""
    named = references(text, 1)
    if len(named) == 1:
        return named[0]
    missing = "Type or paste a model id, such as org/name or org/name@revision, or pick one of the examples."
    raise InvalidRequest(several if named else missing)


def dataset(text: str) -> dict[str, Any]:
    """The request fields for a dataset. Raises InvalidRequest if ``text`` is empty."""
    if not text.strip():
        raise InvalidRequest("Type or paste the id of a dataset on the Hub, such as org/name, or choose the built-in text.")
    return {"data": text.strip()}


def queried(query: Query, kind: type[Any], names: Iterable[str]) -> dict[str, Any]:
    """The fields ``names`` of a form that are in a query: the last value of each, truncated to the field's limit; switches as bool."""
    flags = {field.name for field in fields(kind) if isinstance(field.default, bool)}
    texts = last_texts(query)
    return {name: texts[name] in ("1", "true") if name in flags else texts[name] for name in names if name in texts}


def last_texts(query: Query) -> dict[str, str]:
    """The last value of each query key, truncated to the field's limit."""
    return {key: text[: limits.FILTER_LENGTH + 1] for key, text in dict(query).items()}


def misspelt(query: Query, known: Iterable[str]) -> str:
    """A sentence about the keys of a query that are not ``known`` but resemble a known one; empty if there are none.

    Others are ignored: sites add keys of their own to links, such as utm_source.
    """
    names = [*known, *_ADDED]
    near = {key: difflib.get_close_matches(key, names, 2) for key in dict(query).keys() - set(names)}
    said = ", ".join(f"{key} (did you mean {' or '.join(found)}?)" for key, found in sorted(near.items()) if found)
    return f"Unknown in the address: {said}." if said else ""


def queried_data(query: Query) -> dict[str, str]:
    """``data`` of a query as the fields of a form; none for the built-in text."""
    data = last_texts(query).get("data", BUILTIN)
    return {} if data in ("", BUILTIN) else {"dataset": data, "source": DATASET}


def revised(query: Query) -> Query:
    """Merge ``revision`` into ``model`` as ``org/name@revision`` if the query has exactly one of each."""
    revision = dict(query).get("revision", "")[: limits.REFERENCE_LENGTH]
    models = [text for key, text in query if key == "model"]
    if not revision or len(models) != 1 or not models[0] or "@" in models[0]:
        return query
    return [(key, f"{text}@{revision}" if key == "model" else text) for key, text in query if key != "revision"]


def pinned(checkpoint: CheckpointFacts) -> str:
    """The reference with its commit; samples have none."""
    return checkpoint.ref if checkpoint.ref.startswith("sample:") else f"{checkpoint.ref}@{checkpoint.commit}"


def as_read(report: Any, found: bool = False) -> Any:
    """The request of ``report``, naming the commits that were read: links and commands are made of it.

    found: with the candidates that nobody named, too; a link finds them again.
    """
    request = report.request
    names: dict[str, Any] = {}
    for field, facts in (("model", "checkpoint"), ("base", "base")):
        if getattr(report, facts, None) is not None:
            names[field] = pinned(getattr(report, facts))
    for field in ("tuned", "candidates"):
        if found or getattr(request, field, None):
            names[field] = tuple(map(pinned, getattr(report, field, ())))
    if getattr(request, "data", BUILTIN) not in (BUILTIN, RANDOM):
        text = getattr(report, "data", None) or report.inputs
        names["data"] = text.source if text.commit is None else f"{text.source}@{text.commit}"
    return request.model_copy(update={field: value for field, value in names.items() if hasattr(request, field)})


def changed(request: Request, names: Iterable[str]) -> dict[str, Any]:
    """The fields of ``request`` among ``names`` that differ from their defaults."""
    defaults = type(request).model_fields
    return {name: value for name in names if (value := getattr(request, name)) != defaults[name].default}


def link(keys: Query, options: Mapping[str, Any]) -> str:
    """A query of ``keys`` and ``options``; switches are written as 1 or 0."""
    written = {name: str(int(value)) if isinstance(value, bool) else str(value) for name, value in options.items()}
    return "?" + urlencode([*keys, *written.items()])


def link_to_reading(keys: Query, request: WeightsRequest, own: Iterable[str] = ()) -> str:
    """A query of ``keys``, the mode, and of the other options of reading, and its ``own``, those that differ from their defaults."""
    return link(keys, changed(request, own) | {"mode": request.mode} | changed(request, READING))


def linked(text: str) -> str:
    """The text to put in a link; empty if it is too long."""
    return text if len(text) <= LINKED_CHARACTERS else ""


def command_line(words: Sequence[str], options: Mapping[str, Any]) -> str:
    """A shell command: ``mantissa``, ``words``, and ``options`` of the request: ``--max-length=64``, ``--inside``."""
    line = ["mantissa", *words]
    for name, value in options.items():
        written = name.replace("_", "-")
        if name == "mode":
            line.append(f"--{value}")
        elif isinstance(value, bool):
            line.append(f"--{written}" if value else f"--no-{written}")
        else:  # one word: also works for a value that begins with a dash
            line.append(f"--{written}={value}")
    return shlex.join(line)
