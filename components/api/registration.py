"""Registers endpoints with Gradio. Their errors are one sentence each."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import gradio as gr
from gradio.events import api

from components.api.parameters import REQUIRED, Parameters, with_parameters
from components.running.async_steps import in_background
from components.running.jobs import sentence
from components.running.queue_limits import JobQueue


class Endpoint(NamedTuple):
    """A function for programs, registered under its name.

    about: what it answers; parameters: a one-line description by name; returns: the name of its output; queue: the queue of its jobs,
    None if it answers at once. A generator yields progress, then the answer.
    """

    function: Callable[..., Any]
    about: str
    parameters: Mapping[str, str]
    returns: str
    queue: JobQueue | None = None

    @property
    def name(self) -> str:
        """Name of the function, under which it is registered."""
        return self.function.__name__

    def signature(self) -> dict[str, inspect.Parameter]:
        """Return the parameters that have a description, by name."""
        signature = inspect.signature(self.function, eval_str=True).parameters
        return {name: parameter for name, parameter in signature.items() if name in self.parameters}


_YIELDS = 'Yields progress ({"done", "total", "unit", "note"}); the last item is the answer.'


@contextmanager
def one_sentence() -> Iterator[None]:
    """Raise any error inside it as gr.Error with one sentence."""
    try:
        yield
    except Exception as error:
        raise gr.Error(sentence(error), print_exception=False) from None


def register(app: gr.Blocks, endpoint: Endpoint) -> None:
    """Register ``endpoint`` with ``app``, publicly. Call inside the Blocks."""
    options: dict[str, Any] = {"queue": False}
    if endpoint.queue is not None:  # jobs wait in their own queue, not in Gradio's
        options = {"concurrency_limit": None, "concurrency_id": endpoint.queue.name}
    function, about = endpoint.function, endpoint.about
    if inspect.isgeneratorfunction(function):
        function, about = _background(function), f"{about} {_YIELDS}"
    made = api(function, api_name=endpoint.name, api_description=about, api_visibility="public", **options)
    labels = [*(endpoint.parameters[name] for name in endpoint.signature()), endpoint.returns]
    for number, label in zip([*made["inputs"], *made["outputs"]], labels, strict=True):
        if isinstance(component := app.blocks[number], gr.components.Component):  # true of all inputs and outputs; mypy cannot know
            component.label = label


def _background(function: Callable[..., Any]) -> Any:
    """Turn a generator function into an asynchronous one that takes the request and the login first."""
    signature = inspect.signature(function)
    types: Parameters = {"request": (gr.Request, REQUIRED), "login": (gr.OAuthToken | None, REQUIRED)}
    types |= {name: (parameter.annotation, parameter.default) for name, parameter in signature.parameters.items()}
    made = in_background(lambda request, login, *values: function(*values))
    return with_parameters(made, function.__name__, types, signature.return_annotation)
