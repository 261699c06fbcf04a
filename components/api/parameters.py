"""Derives the parameters of endpoints from fields of a pydantic model, with JSON types."""

import inspect
from collections.abc import Callable, Iterable
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel

# The type and default of each parameter.
Parameters = dict[str, tuple[Any, Any]]
REQUIRED = inspect.Parameter.empty


def parameters(model: type[BaseModel], names: Iterable[str]) -> Parameters:
    """Return the JSON type and the default of the fields ``names``; the default of a required field is `REQUIRED`."""
    types: Parameters = {}
    for name in names:
        field = model.model_fields[name]
        default, kind = field.get_default(), _json_type(field.annotation)
        if field.is_required():
            types[name] = kind, REQUIRED
        else:
            types[name] = (kind | None, None) if default == () else (kind, default)
    return types


def with_parameters(function: Callable[..., Any], name: str, types: Parameters, returns: Any) -> Any:
    """Set the name and signature of ``function``, from which Gradio and MCP read its parameters and its one output."""
    keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD
    given = [inspect.Parameter(each, keyword, default=default, annotation=kind) for each, (kind, default) in types.items()]
    made: Any = function
    made.__name__ = made.__qualname__ = name
    made.__signature__ = inspect.Signature(given, return_annotation=returns)
    made.__annotations__ = {each: kind for each, (kind, _) in types.items()} | {"return": returns}
    return made


def named_arguments(function: Callable[..., Any], values: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name, without null and "", which mean the default. JSON has no integers: 1.0 becomes 1."""
    bound = inspect.signature(function).bind_partial(*values, **named).arguments
    whole = {name: int(value) for name, value in bound.items() if isinstance(value, float) and value.is_integer()}
    return {name: value for name, value in (bound | whole).items() if value is not None and value != ""}


def _json_type(annotation: Any) -> Any:
    """Translate the type of a request's field to JSON: lists for tuples, objects for models."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return dict[str, Any]
    kinds = get_args(annotation)
    if get_origin(annotation) is tuple:
        return list[_json_type(kinds[0])]  # type: ignore[misc]  # a type made at run time
    if get_origin(annotation) in (Union, UnionType):
        return Union[tuple(map(_json_type, kinds))]  # noqa: UP007 - of types made at run time
    return annotation
