"""What the forms of all analyses that run a model have in common: as typed, as a link, and as a command.

A form is a dataclass of what is typed, in the order of the page; an empty text means: the default.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, Protocol
from urllib.parse import urlencode

from analyzers import limits
from analyzers.base import CheckpointFacts, Request
from analyzers.errors import InvalidRequest
from components.forms.links import Query, pinned, references

# Where a text is from; an analyzer may have more kinds.
BUILTIN, DATASET = "builtin", "dataset"
# Texts longer than this are not put into a link: browsers and proxies cut addresses off.
LINKED_CHARACTERS = 4_000


class ModelForm(Protocol):
    """The fields of a page about one model."""

    @property
    def model(self) -> str:
        """The model, as typed."""

    def request(self) -> Request:
        """The validated request. Raises MantissaError with the sentence to show."""


def one_model(typed: str, several: str) -> str:
    """The only reference in ``typed``. Raises InvalidRequest where there is none, and saying ``several`` where there are more."""
    named = references(typed, 1)
    if len(named) == 1:
        return named[0]
    missing = "Type or paste a model id, such as org/name or org/name@revision, or pick one of the examples."
    raise InvalidRequest(several if named else missing)


def dataset(typed: str) -> dict[str, Any]:
    """The fields of a request for a dataset. Raises InvalidRequest where none is named."""
    if not typed.strip():
        raise InvalidRequest("Type or paste the id of a dataset on the Hub, such as org/name, or choose the built-in text.")
    return {"data": typed.strip()}


def filled(form: Any, names: Iterable[str], read: Callable[[str, str], Any] = lambda name, text: text) -> dict[str, Any]:
    """The fields among ``names`` in which something was typed, each as ``read(name, text)`` has it."""
    return {name: read(name, text) for name in names if (text := getattr(form, name).strip())}


def values(form: Any) -> list[Any]:
    """What each field of the page holds."""
    held: list[Any] = [getattr(form, each.name) for each in fields(form)]
    return [list(value) if isinstance(value, tuple) else value for value in held]


def last_texts(query: Query) -> dict[str, str]:
    """Of each key of a query the last value, cut to what a field may hold."""
    return {key: text[: limits.FILTER_LENGTH + 1] for key, text in dict(query).items()}


def ticked(text: str) -> bool:
    """Whether a key of a query switches something on."""
    return text in ("1", "true")


def flags(texts: Mapping[str, str], names: Iterable[str]) -> dict[str, bool]:
    """Those of the switches ``names`` that a query has."""
    return {name: ticked(texts[name]) for name in names if name in texts}


def linked(text: str) -> str:
    """A text as a link bears it: nothing where it is too long."""
    return text if len(text) <= LINKED_CHARACTERS else ""


def dataset_at(source: str, commit: str | None) -> str:
    """A dataset with its commit."""
    return f"{source}@{commit}"


def changed(request: Request, names: Iterable[str]) -> dict[str, Any]:
    """The fields of ``request`` among ``names`` that are not at their default."""
    defaults = type(request).model_fields
    return {name: value for name in names if (value := getattr(request, name)) != defaults[name].default}


def model_link(checkpoint: CheckpointFacts, keys: Query, options: Mapping[str, Any]) -> str:
    """The query ``?model=...`` pinned to the commit, with ``keys`` and then ``options``; a switch is 1 or 0."""
    written = {name: str(int(value)) if isinstance(value, bool) else str(value) for name, value in options.items()}
    return "?" + urlencode([("model", pinned(checkpoint)), *keys, *written.items()])


def option(name: str, value: Any) -> str:
    """A field of a request as the command line has it: ``--max-length=64``, ``--inside``, ``--no-weights``."""
    written = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{written}" if value else f"--no-{written}"
    return f"--{written}={value}"
