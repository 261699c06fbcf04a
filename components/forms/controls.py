"""The controls that start and stop a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

# Filled by page.js when Enter is pressed while an analysis runs.
_BUSY = '<p id="m-busy" role="status"></p>'


@dataclass(frozen=True, slots=True)
class Controls:
    """beside: other components to disable while an analysis runs (the examples). again: recomputes a result shown from the library."""

    go: gr.Button
    stop: gr.Button
    beside: Sequence[gr.Button]
    again: gr.Button

    def components(self) -> list[Any]:
        """All components, as the outputs of an event."""
        return [self.go, self.stop, self.again, *self.beside]

    def busy(self, running: bool) -> dict[Any, Any]:
        """Updates for when an analysis starts (``running``) or ends."""
        return {
            self.go: gr.update(visible=not running),
            self.stop: gr.update(visible=running),
            self.again: gr.update(visible=False),
            **{button: gr.update(interactive=not running) for button in self.beside},
        }


def build_buttons(name: str) -> tuple[gr.Button, gr.Button]:
    """The start button, labelled ``name``, and the Stop button that replaces it. Call in the row of the question."""
    go = gr.Button(name, variant="primary", elem_id="m-inspect", elem_classes="m-go")
    stop = gr.Button("Stop", variant="secondary", visible=False, elem_id="m-stop", elem_classes="m-go")
    return go, stop


def build_status() -> tuple[gr.HTML, gr.Button]:
    """The status line for progress, errors and notes on a result, and the button that recomputes a stored result."""
    status = gr.HTML(elem_id="m-status", elem_classes="m-plain")
    again = gr.Button("Compute again", visible=False, size="sm", elem_id="m-again", elem_classes="m-small")
    return status, again


def build_busy() -> None:
    """The notice that an analysis is already running. Call below the question."""
    gr.HTML(_BUSY, elem_classes="m-plain")


def build_examples(names: Sequence[str]) -> list[gr.Button]:
    """A button for each example, in a wrapping row."""
    with gr.Row(elem_classes="m-chips"):
        return [gr.Button(name, size="sm", scale=0) for name in names]
