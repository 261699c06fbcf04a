"""What programs are answered: one sentence where something goes wrong, and over MCP JSON."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gradio as gr
from gradio.mcp import GradioMCPServer

from components.running.jobs import sentence
from components.text import numbers


@contextmanager
def one_sentence() -> Iterator[None]:
    """What goes wrong within it is said in one sentence. Raises gr.Error."""
    try:
        yield
    except Exception as error:
        raise gr.Error(sentence(error), print_exception=False) from None


class Pages(gr.Blocks):
    """Gradio's, which by itself answers a call with too few values, or with what is meant to be a file, by an error that says nothing."""

    async def preprocess_data(self, *arguments: Any, **named: Any) -> Any:
        """What came, as it is handed on. Raises gr.Error where that cannot be done."""
        try:
            return await super().preprocess_data(*arguments, **named)
        except gr.Error:
            raise
        except Exception:
            raise gr.Error("One of the values that came is none that can be taken here.", print_exception=False) from None

    def validate_inputs(self, block_fn: Any, inputs: list[Any]) -> None:
        """Raise gr.Error unless there is a value for each parameter."""
        if len(inputs) < len(block_fn.inputs):
            needed, given = numbers.plural(len(block_fn.inputs), "value"), len(inputs)
            are = "is" if len(block_fn.inputs) == 1 else "are"
            raise gr.Error(f"{needed} {are} needed here, one for each parameter, and {given} came.", print_exception=False)


def answer_in_json() -> None:
    """From now on every tool answers in JSON, and a text as it is. Gradio by itself writes an object as Python does, which is no format."""
    written = GradioMCPServer.postprocess_output_data

    def in_json(server: GradioMCPServer, data: Any, root_url: str) -> Any:
        return written(server, [each if isinstance(each, str) else json.dumps(each, ensure_ascii=False) for each in data], root_url)

    GradioMCPServer.postprocess_output_data = in_json  # type: ignore[method-assign, assignment]
