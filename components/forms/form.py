"""Turns what is typed on a page into a request, and a request into a link and a command.

What is typed is a dictionary of texts, choices, switches and lists by the names of the request's fields and of a page's additional
fields. A missing or empty value means the default. A query string is as untrusted as what is typed: it only fills in the form, and the
request validates the values.
"""

import difflib
import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlencode

from pydantic import BaseModel, ValidationError

from analyzers import analyzer_of
from analyzers.checkpoints.reference import with_commits
from analyzers.core import limits
from analyzers.core.errors import InvalidRequest
from analyzers.core.options import choices, is_list, is_subject, offered, option_of, parse
from analyzers.core.pasted_text import plain_or_same, split, with_plus
from analyzers.core.request import Request, request_error

Query = Sequence[tuple[str, str]]
Typed = Mapping[str, Any]
SHOWN = 60
# Sources of text; an analyzer may add more.
BUILTIN, DATASET, RANDOM = "builtin", "dataset", "random"
# Longer texts are omitted from links: browsers and proxies truncate long URLs.
LINKED_CHARACTERS = 4_000
# Keys of addresses that are not fields of a request: one of several values, a commit, the result alone.
_ADDED = ("model", "candidate", "variant", "revision", "embed")
# One value and one character more than any request takes, so that excess values are rejected rather than truncated.
_MOST, _LONGEST = max(limits.TRAJECTORY, limits.CANDIDATES) + 1, limits.REFERENCE_LENGTH + 1
_Request = TypeVar("_Request", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a run. less: how to reduce it; tokens: the maximum that a request runs through the model, over all passes."""

    less: str
    tokens: Callable[[Any], int] = lambda request: 0


# Smallest values of the options that determine how long a run takes.
_LEAST = {"samples": 4, "max_length": 64, "sequences": 1, "sequence_length": 64, "seeds": 1}


def smaller(request: Any) -> Any:
    """Halve the text and the seeds of a request; None if they are as small as possible."""
    less = {name: max(least, getattr(request, name) // 2) for name, least in _LEAST.items() if getattr(request, name, least) > least}
    return request.model_copy(update=less) if less else None


def typed(value: Any) -> str:
    """Return the value of a field as text; the page sends null for an empty field."""
    return "" if value is None else str(value)


def validated(kind: type[_Request], form: Typed, **given: Any) -> _Request:
    """Validate what is typed as a request; values in ``given`` override fields, and None means the default.

    Raises InvalidRequest with the sentence to show, which names fields in words.
    """
    texts = {name: form.get(name) for name in offered(kind, "site") if name not in given}
    if texts.get("mode") == "exact":  # an exact run reads everything, so the page ignores the budget
        texts["budget"] = None
    values = given | {name: _value(kind, name, value) for name, value in texts.items()}
    try:
        return _sentence(lambda: kind(**{name: value for name, value in values.items() if value is not None}))
    except InvalidRequest as error:
        message = re.sub(rf"\b({'|'.join(kind.model_fields)})\b", lambda name: name[0].replace("_", " "), str(error), flags=re.IGNORECASE)
        raise InvalidRequest(message) from None


def validated_json(kind: type[_Request], given: dict[str, Any]) -> _Request:
    """Validate a JSON object as a request, with strict types: "no" is not false. Raises InvalidRequest with the sentence to show."""
    return _sentence(lambda: kind.model_validate_json(json.dumps(given), strict=True))


def _sentence(made: Callable[[], _Request]) -> _Request:
    try:
        return made()
    except ValidationError as error:
        message = str(request_error(error))
        raise InvalidRequest(message[:1].upper() + message[1:]) from None


def _value(kind: type[BaseModel], name: str, value: Any) -> Any:
    """Parse what is typed in a field; None if it is empty. Raises InvalidRequest."""
    if isinstance(value, str):
        return parse(kind, name, value.strip()) if value.strip() else None
    return tuple(value) if isinstance(value, list | tuple) else value


def references(texts: str | Sequence[str], most: int) -> list[str]:
    """Return the references in texts, as `pasted_text.split` does. Raises InvalidRequest if one is longer than ``most`` references."""
    several = [texts] if isinstance(texts, str) else texts
    if (longest := max(map(len, several), default=0)) > most * (limits.REFERENCE_LENGTH + 2):
        raise InvalidRequest(f"{longest:,} characters are more than {most} model ids have: paste the ids only.")
    return [name for text in several for name in split(text)]


def one_model(text: str | None, several: str) -> str:
    """Parse a single reference. Raises InvalidRequest if there is none, or with the message ``several`` if there is more than one."""
    named = references(text or "", 1)
    if len(named) == 1:
        return named[0]
    missing = "Type or paste a model id, such as org/name or org/name@revision, or pick one of the examples."
    raise InvalidRequest(several if named else missing)


def data(form: Typed) -> str:
    """Return the name of the data: the built-in text or a dataset. Raises InvalidRequest if its name is missing."""
    if form.get("data") != DATASET:
        return BUILTIN
    if name := typed(form.get("dataset")).strip():
        return name
    raise InvalidRequest("Type or paste the id of a dataset on the Hub, such as org/name, or choose the built-in text.")


def queried(query: Query, kind: type[BaseModel]) -> dict[str, Any]:
    """Return the values that a query fills in: the last of each key, or all of a key that names one of several, truncated to the limit."""
    query = revised(query)
    texts, filled = last_texts(query), dict[str, Any]()
    for name in offered(kind, "site"):
        if one := option_of(kind, name).one:
            filled[name] = [text[:_LONGEST] for key, text in query if key in (name, one) and text.strip()][:_MOST]
        elif name not in texts:
            continue
        elif name == "data":
            filled |= {} if texts[name] in ("", BUILTIN) else {"dataset": texts[name], "data": DATASET}
        elif kind.model_fields[name].annotation is bool:
            filled[name] = texts[name] in ("1", "true")
        else:
            filled[name] = listed(texts[name]) if is_list(kind, name) and choices(kind, name) else texts[name]
    return filled


def listed(text: str) -> list[str]:
    """Split a text at commas into names."""
    return [name.strip() for name in text.split(",")] if text.strip() else []


def as_models(query: Query, *keys: str) -> Query:
    """Rename the keys that name checkpoints, in this order, to ``model``, as a page that takes several models expects."""
    return [("model", text) for key in keys for name, text in query if name == key] + [each for each in query if each[0] not in keys]


def last_texts(query: Query) -> dict[str, str]:
    """Return the last value of each query key, truncated to the field's limit."""
    return {key: text[: limits.FILTER_LENGTH + 1] for key, text in dict(query).items()}


def misspelt(query: Query, known: Iterable[str]) -> str:
    """Return a sentence about keys of a query that are not ``known`` but resemble a known one; "" if there are none.

    Other keys are ignored: sites add their own to links, such as utm_source.
    """
    names = dict.fromkeys([*known, *_ADDED])
    near = {key: difflib.get_close_matches(key, names, 2) for key in dict(query).keys() - set(names)}
    hints = ", ".join(f"{key} (did you mean {' or '.join(found)}?)" for key, found in sorted(near.items()) if found)
    return f"Unknown in the address: {hints}." if hints else ""


# Keys whose values are references.
_REFERENCES = ("model", "base", "tuned", "candidate")


def revised(query: Query) -> Query:
    """Merge ``revision`` into ``model`` as ``org/name@revision`` if the query has exactly one of each.

    A "+" that a visitor typed into the address has become a space, which BASE+ADAPTER does not have.
    """
    query = [(key, with_plus(text) if key in _REFERENCES else text) for key, text in query]
    revision = dict(query).get("revision", "")[: limits.REFERENCE_LENGTH]
    models = [plain_or_same(text) for key, text in query if key == "model"]
    if not revision or len(models) != 1 or not models[0] or "@" in models[0]:
        return query
    return [(key, f"{models[0]}@{revision}" if key == "model" else text) for key, text in query if key != "revision"]


def as_read(report: Any, found: bool = False) -> Any:
    """Return the request of ``report`` with the commits that were read, from which links and commands are made.

    found: also name the candidates that the analysis found itself; a link finds them again.
    """
    request = report.request
    names: dict[str, Any] = {}
    for field, facts in (("model", "checkpoint"), ("base", "base")):
        if getattr(report, facts, None) is not None:
            names[field] = with_commits(getattr(report, facts).ref, getattr(report, facts).commit)
    for field in ("models", "tuned", "candidates"):
        if found or getattr(request, field, None):
            names[field] = tuple(with_commits(each.ref, each.commit) for each in getattr(report, field, ()))
    if getattr(request, "data", BUILTIN) not in (BUILTIN, RANDOM):
        text = getattr(report, "data", None) or report.inputs
        names["data"] = text.source if text.commit is None else f"{text.source}@{text.commit}"
    return request.model_copy(update={field: value for field, value in names.items() if hasattr(request, field)})


def permalink(request: Request, **written: Query) -> str:
    """Return the query that makes the same request: the checkpoints, the mode, and the options that are not at their default.

    written: keys and values that replace those of single fields.
    """
    kind, pairs = type(request), list[tuple[str, str]]()
    for name in offered(kind, "site"):
        value, one = getattr(request, name), option_of(kind, name).one
        if name in written:
            pairs += written[name]
        elif one:
            pairs += [(one, each) for each in value]
        elif name == "mode" or value != kind.model_fields[name].default:
            pairs.append((name, str(int(value)) if isinstance(value, bool) else _written(value)))
    return "?" + urlencode(pairs)


def command(request: Request, **written: Sequence[str]) -> str:
    """Return the shell command for the same analysis: ``--max-length=64``, ``--inside``. written: words that replace those of fields."""
    kind, line = type(request), ["mantissa", analyzer_of(request).name]
    for name in (name for name in offered(kind, "site") if option_of(kind, name).command):
        value, flag = getattr(request, name), name.replace("_", "-")
        if name in written:
            line += written[name]
        elif value == kind.model_fields[name].default:
            continue
        elif is_subject(kind, name):
            line += value if is_list(kind, name) else [value]
        elif name == "mode":
            line.append(f"--{value}")
        elif isinstance(value, bool):
            line.append(f"--{flag}" if value else f"--no-{flag}")
        else:  # a single word, so that a value may begin with a dash
            line.append(f"--{flag}={_written(value)}")
    return shlex.join(line)


def _written(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def linked(text: str) -> str:
    """Return the text for a link; "" if it is too long."""
    return text if len(text) <= LINKED_CHARACTERS else ""
