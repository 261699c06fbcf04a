"""Answers for programs: an error is one sentence, and MCP tools answer in JSON."""

import inspect
import json
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any

import gradio as gr
from gradio.events import api

from analyzers.terminal import printable_json
from components.running.background import in_background
from components.running.jobs import sentence

# Added to the headers of a request of an MCP client, which Gradio passes on to the endpoint that is called.
FROM_MCP = (b"x-mantissa-answer", b"json")
_MCP = "/gradio_api/mcp"


@contextmanager
def one_sentence() -> Iterator[None]:
    """Raise any error inside it as gr.Error with one sentence."""
    try:
        yield
    except Exception as error:
        raise gr.Error(sentence(error), print_exception=False) from None


def register(app: gr.Blocks, function: Callable[..., Any], about: str, parameters: Mapping[str, str], returns: str, **options: Any) -> None:
    """Register ``function`` as a public endpoint and MCP tool of its name. Call inside the Blocks.

    about: what it answers; parameters: a description of each, on one line; returns: what its output is called; options: of `gradio.api`.
    """
    endpoint = json_over_mcp(function)
    names = [name for name in inspect.signature(function).parameters if name in parameters]
    # MCP reads the descriptions of parameters from the docstring, /gradio_api/info those of components from their labels
    endpoint.__doc__ = "\n".join([about, "", "Parameters:", *(f"    {name}: {parameters[name]}" for name in names)])
    made = api(endpoint, api_name=function.__name__, api_description=about, api_visibility="public", **options)
    for number, label in zip([*made["inputs"], *made["outputs"]], [*(parameters[name] for name in names), returns], strict=True):
        if isinstance(component := app.blocks[number], gr.components.Component):  # as all inputs and outputs are
            component.label = label


def is_mcp(path: str) -> bool:
    """Whether a request comes from an MCP client."""
    return path == _MCP or path.startswith(f"{_MCP}/")


def json_over_mcp(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` as an endpoint that answers MCP clients with JSON text; Gradio would write an object as Python's repr.

    The endpoint has the same parameters, and takes the request first if ``function`` does not; that of a generator, the login too.
    """
    signature = inspect.signature(function, eval_str=True)
    takes_request = next(iter(signature.parameters)) == "request"

    def given(request: Any, values: tuple[Any, ...]) -> tuple[Any, ...]:
        return (request, *values) if takes_request else values

    @wraps(function)
    def answer(request: Any, *values: Any) -> Any:
        return _written(function(*given(request, values)), request)

    @wraps(function)
    def answers(request: Any, login: Any, *values: Any) -> Generator[Any, None, None]:
        for item in function(*given(request, values)):
            yield _written(item, request)

    endpoint: Any = in_background(answers) if inspect.isgeneratorfunction(function) else answer
    if not takes_request:
        first: dict[str, Any] = {"request": gr.Request}
        if inspect.isgeneratorfunction(function):
            first["login"] = gr.OAuthToken | None
        added = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kind) for name, kind in first.items()]
        endpoint.__signature__ = signature.replace(parameters=[*added, *signature.parameters.values()])
        endpoint.__annotations__ = first | function.__annotations__
    made: Callable[..., Any] = endpoint
    return made


def _written(answer: Any, request: Any) -> Any:
    name, value = (part.decode() for part in FROM_MCP)
    over_mcp = (getattr(request, "headers", None) or {}).get(name) == value
    return printable_json(json.dumps(answer, ensure_ascii=False)) if over_mcp and not isinstance(answer, str) else answer
