"""Replaces the package `spaces` of ZeroGPU, which needs its servers: the same decorator, whose visitors have no quota left."""

import inspect
import sys
from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any

if "torch" in sys.modules:
    raise RuntimeError("Import spaces before torch.")


def GPU(task: Any = None, *, duration: Any = None, size: str | None = None) -> Any:  # noqa: N802 - as there
    """Decorate a task that needs a GPU."""
    return _lending(task, duration) if callable(task) else partial(GPU, duration=duration, size=size)


def gradio_auto_wrap(task: Any) -> Any:
    """Wrap the function of an event, as called by Gradio on a Space: no effect, unless a variable is set there."""
    return task


def _lending(task: Callable[..., Any], duration: Callable[..., int]) -> Callable[..., Iterator[Any]]:
    assert inspect.isgeneratorfunction(task), "the app lends to generators only"

    @wraps(task)
    def handler(*values: Any) -> Iterator[Any]:
        import gradio as gr

        message = f"You have exceeded your free ZeroGPU quota ({duration(*values)}s requested vs. 0s left). Try again in 1:15:00. "
        raise gr.Error(message, title="ZeroGPU quota exceeded", print_exception=False)
        yield

    return handler
