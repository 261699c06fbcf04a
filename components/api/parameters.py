"""Parameters of endpoints: fields of a pydantic model, by name, as JSON has them."""

import inspect
from collections.abc import Callable, Iterable
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel

# The type and the default of each parameter.
Parameters = dict[str, tuple[Any, Any]]
REQUIRED = inspect.Parameter.empty


def parameters(model: type[BaseModel], names: Iterable[str]) -> Parameters:
    """The type and the default of the fields ``names``; `REQUIRED` in place of a default where there is none."""
    found: Parameters = {}
    for name in names:
        field = model.model_fields[name]
        default, kind = field.get_default(), _json_type(field.annotation)
        if field.is_required():
            found[name] = kind, REQUIRED
        else:
            found[name] = (kind | None, None) if default == () else (kind, default)
    return found


def with_parameters(function: Callable[..., Any], name: str, types: Parameters, returns: Any) -> Any:
    """``function`` with this name, these parameters and one output, which Gradio and MCP read."""
    keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD
    given = [inspect.Parameter(each, keyword, default=default, annotation=kind) for each, (kind, default) in types.items()]
    made: Any = function
    made.__name__ = made.__qualname__ = name
    made.__signature__ = inspect.Signature(given, return_annotation=returns)
    made.__annotations__ = {each: kind for each, (kind, _) in types.items()} | {"return": returns}
    return made


def named_arguments(function: Callable[..., Any], values: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name; null and an empty text mean the default. JSON has no integers: 1.0 is 1."""
    bound = inspect.signature(function).bind_partial(*values, **named).arguments
    whole = {name: int(value) for name, value in bound.items() if isinstance(value, float) and value.is_integer()}
    return {name: value for name, value in (bound | whole).items() if value is not None and value != ""}


def _json_type(annotation: Any) -> Any:
    """The type of a field of a request as JSON has it: lists for tuples, objects for models."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return dict[str, Any]
    kinds = get_args(annotation)
    if get_origin(annotation) is tuple:
        return list[_json_type(kinds[0])]  # type: ignore[misc]  # a type made at run time
    if get_origin(annotation) in (Union, UnionType):
        return Union[tuple(map(_json_type, kinds))]  # noqa: UP007 - of types made at run time
    return annotation
