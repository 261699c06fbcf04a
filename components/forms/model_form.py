"""The form shared by all analyses that run a model: as typed, as a link, and as a command.

A form is a dataclass of the typed values, in page order. An empty text means the default.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, Protocol
from urllib.parse import urlencode

from analyzers import limits
from analyzers.base import CheckpointFacts, Request
from analyzers.errors import InvalidRequest
from components.forms.links import Query, pinned, references

# Sources of text; an analyzer may add more.
BUILTIN, DATASET = "builtin", "dataset"
# Longer texts are omitted from links: browsers and proxies truncate long URLs.
LINKED_CHARACTERS = 4_000


class ModelForm(Protocol):
    """The fields of a page about one model."""

    @property
    def model(self) -> str:
        """The model, as typed."""

    def request(self) -> Request:
        """The validated request. Raises MantissaError with the sentence to show."""


def one_model(typed: str, several: str) -> str:
    """Parse a single reference. Raises InvalidRequest if there is none, or with the message ``several`` if there is more than one."""
    named = references(typed, 1)
    if len(named) == 1:
        return named[0]
    missing = "Type or paste a model id, such as org/name or org/name@revision, or pick one of the examples."
    raise InvalidRequest(several if named else missing)


def dataset(typed: str) -> dict[str, Any]:
    """The request fields for a dataset. Raises InvalidRequest if ``typed`` is empty."""
    if not typed.strip():
        raise InvalidRequest("Type or paste the id of a dataset on the Hub, such as org/name, or choose the built-in text.")
    return {"data": typed.strip()}


def filled(form: Any, names: Iterable[str], read: Callable[[str, str], Any] = lambda name, text: text) -> dict[str, Any]:
    """The non-empty fields among ``names``, each parsed by ``read(name, text)``."""
    return {name: read(name, text) for name in names if (text := getattr(form, name).strip())}


def values(form: Any) -> list[Any]:
    """The value of each form field, for the page."""
    held: list[Any] = [getattr(form, each.name) for each in fields(form)]
    return [list(value) if isinstance(value, tuple) else value for value in held]


def last_texts(query: Query) -> dict[str, str]:
    """The last value of each query key, truncated to the field's limit."""
    return {key: text[: limits.FILTER_LENGTH + 1] for key, text in dict(query).items()}


def ticked(text: str) -> bool:
    """Whether a query value turns a switch on."""
    return text in ("1", "true")


def flags(texts: Mapping[str, str], names: Iterable[str]) -> dict[str, bool]:
    """The switches among ``names`` that appear in a query, and whether they are on."""
    return {name: ticked(texts[name]) for name in names if name in texts}


def linked(text: str) -> str:
    """The text to put in a link; empty if it is too long."""
    return text if len(text) <= LINKED_CHARACTERS else ""


def dataset_at(source: str, commit: str | None) -> str:
    """A dataset with its commit."""
    return f"{source}@{commit}"


def changed(request: Request, names: Iterable[str]) -> dict[str, Any]:
    """The fields of ``request`` among ``names`` that differ from their defaults."""
    defaults = type(request).model_fields
    return {name: value for name in names if (value := getattr(request, name)) != defaults[name].default}


def model_link(checkpoint: CheckpointFacts, keys: Query, options: Mapping[str, Any]) -> str:
    """The query ``?model=...`` pinned to the commit, followed by ``keys`` and ``options``; switches are written as 1 or 0."""
    written = {name: str(int(value)) if isinstance(value, bool) else str(value) for name, value in options.items()}
    return "?" + urlencode([("model", pinned(checkpoint)), *keys, *written.items()])


def option(name: str, value: Any) -> str:
    """A request field as a command-line option: ``--max-length=64``, ``--inside``, ``--no-weights``."""
    written = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{written}" if value else f"--no-{written}"
    return f"--{written}={value}"
