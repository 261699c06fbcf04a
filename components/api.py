"""Defines the endpoints for programs and agents: one per analyzer with the fields of its request, and three of the library."""

import inspect
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from types import UnionType
from typing import Any, Union, get_args, get_origin

import gradio as gr
from gradio import api  # type: ignore[attr-defined]  # public, as gr.api
from pydantic import BaseModel, ValidationError

from analyzers import ANALYZERS, Analyzer
from analyzers.core import limits
from analyzers.core.errors import InvalidRequest
from analyzers.core.options import describe, is_list, offered
from analyzers.core.report import Report
from analyzers.core.request import Progress, request_error
from analyzers.core.untrusted_json import parse_json
from components import store
from components.errors import sentence
from components.identity import access_of, visitor_of
from components.library import model_id
from components.result.layout import layout_of
from components.run import Visitor, run

_SHORT = "Answer with headline, advice, tiles, notes and address only, which is enough for most questions: agents, set this."
_PRIVATE = (
    "Gated and private models need your own Hub token, as the header Authorization: Bearer hf_...; it is used for this call only, and the "
    "result is not stored."
)


def add_endpoints() -> None:
    """Register the endpoints. Call inside the Blocks."""
    for analyzer in ANALYZERS.values():
        api(_endpoint(analyzer), api_name=analyzer.name, concurrency_limit=None)
    for function in (find_models, labels, stored_result):
        api(function, api_name=function.__name__, queue=False)


def short(report: Report, address: str) -> dict[str, Any]:
    """Return the words of a report, and where the whole of it is."""
    return {
        "analyzer": report.analyzer,
        "id": report.id,
        "headline": report.headline,
        "advice": report.advice.text,
        "tiles": [tile.model_dump() for tile in layout_of(report).tiles(report)],
        "notes": [note.text for note in report.notes],
        "address": address,
    }


@contextmanager
def _one_sentence() -> Iterator[None]:
    """Raise any error inside it as gr.Error with one sentence."""
    try:
        yield
    except Exception as error:
        raise gr.Error(sentence(error), print_exception=False) from None


def _endpoint(analyzer: Analyzer) -> Any:
    """Make the endpoint of an analyzer: a generator of progress whose last item is the report, or its short form."""
    kind = analyzer.request_model()
    names = offered(kind, "site")

    async def answer(request: gr.Request, login: gr.OAuthToken | None, *values: Any) -> AsyncIterator[Any]:
        with _one_sentence():
            given = dict(zip([*names, "short"], values, strict=False))
            shortened = given.pop("short", False)
            access = access_of(request, login)
            asked = validated(kind, given)
            async with aclosing(run(asked, Visitor(visitor_of(request, access), access))) as items:
                async for item in items:
                    if isinstance(item, Progress):
                        yield item.model_dump(mode="json")
                    else:
                        yield short(item.report, item.address) if shortened else item.report.model_dump(mode="json")

    described = "".join(f"\n        {name}: {describe(kind, name)}" for name in names)
    answer.__doc__ = (
        f"Tell {analyzer.question}. {_PRIVATE} Yields progress (done, total, unit, note); the last item is the answer.\n\n"
        f"    Args:{described}\n        short: {_SHORT}\n"
    )
    parameters = [("request", gr.Request, inspect.Parameter.empty), ("login", gr.OAuthToken | None, inspect.Parameter.empty)]
    parameters += [(name, *_json_type(kind, name)) for name in names] + [("short", bool, False)]
    made: Any = answer
    made.__name__ = made.__qualname__ = analyzer.name
    where = inspect.Parameter.POSITIONAL_OR_KEYWORD
    made.__signature__ = inspect.Signature(
        [inspect.Parameter(name, where, default=default, annotation=annotation) for name, annotation, default in parameters],
        return_annotation=AsyncIterator[dict[str, Any]],
    )
    made.__annotations__ = {name: annotation for name, annotation, _ in parameters} | {"return": AsyncIterator[dict[str, Any]]}
    return made


def validated(kind: type[BaseModel], given: dict[str, Any]) -> Any:
    """Validate the arguments of a call, with strict types: null and "" mean the default. Raises InvalidRequest."""
    named = {name: int(value) if isinstance(value, float) and value.is_integer() else value for name, value in given.items()}
    named = {name: value for name, value in named.items() if value is not None and value != ""}
    missing = next((name for name, field in kind.model_fields.items() if field.is_required() and not named.get(name)), None)
    if missing:
        raise InvalidRequest(f"{missing} is missing: name a checkpoint, such as org/name, org/name@revision or sample:tiny-bf16.")
    try:
        return kind.model_validate_json(json.dumps(named), strict=True)
    except ValidationError as error:
        raise request_error(error) from None


def _json_type(kind: type[BaseModel], name: str) -> tuple[Any, Any]:
    """Return the JSON type of a field and its default; that of a required field is empty."""
    field = kind.model_fields[name]
    annotation = _plain(field.annotation)
    if field.is_required():
        return annotation, inspect.Parameter.empty
    return (annotation | None, None) if field.default == () else (annotation, list(field.default) if is_list(kind, name) else field.default)


def _plain(annotation: Any) -> Any:
    """Translate the type of a field to JSON: lists for tuples, objects for models."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return dict[str, Any]
    kinds = get_args(annotation)
    if get_origin(annotation) is tuple:
        return list[_plain(kinds[0])]  # type: ignore[misc]  # a type made at run time
    if get_origin(annotation) in (Union, UnionType):
        return Union[tuple(map(_plain, kinds))]  # noqa: UP007 - of types made at run time
    return annotation


def find_models(text: str) -> list[dict[str, Any]]:
    """Find models in the library, with their labels and the answers of stored results, newest first.

    Args:
        text: Words that the model's name has, all of them; empty: every model.
    """
    with _one_sentence():
        return [row.model_dump(mode="json") for row in store.our_library().models(_text(text))]


def labels(model: str) -> dict[str, Any]:
    """Return the consensus of the labels of a model on its training precision, and the labels with their evidence.

    Args:
        model: A model on the Hub: org/name.
    """
    with _one_sentence():
        answer: dict[str, Any] = store.our_library().consensus(model_id(_text(model))).model_dump(mode="json")
        return answer | {"labels": [label.model_dump(mode="json") for label in store.our_library().labels_of(model_id(_text(model)))]}


def stored_result(id: str) -> dict[str, Any]:
    """Return a stored report.

    Args:
        id: The id of the report, 64 hex digits.
    """
    with _one_sentence():
        found = store.our_library().result(_text(id)[:64])
        if found is None:
            raise InvalidRequest("There is no stored result with this id: check it, or run the analysis again.")
        answer: dict[str, Any] = parse_json(found)
        return answer


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > limits.FILTER_LENGTH:
        raise InvalidRequest("This must be a short text.")
    return value


def names() -> Iterator[str]:
    """Yield the names of all endpoints."""
    yield from (*ANALYZERS, *(function.__name__ for function in (find_models, labels, stored_result)))
