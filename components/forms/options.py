"""The options shared by all forms over weights: how much is read, and from which tensors."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import gradio as gr

from components.forms.links import Reading


@contextmanager
def options() -> Iterator[list[Any]]:
    """A folded section with the fields of a `Reading`, in order. Components built inside the context are placed below them. Use inside a
    page.
    """
    with gr.Accordion("Options", open=False, elem_classes="m-options", elem_id="m-options"):
        with gr.Row():
            mode = gr.Radio([("Quick: a sample", "quick"), ("Exact: every byte", "exact")], value="quick", label="Mode")
            budget = gr.Textbox(label="Budget of quick mode", placeholder="64MB")
        with gr.Row():
            include = gr.Textbox(label="Only tensors whose name matches (regular expression)", placeholder="mlp")
            exclude = gr.Textbox(label="Leave out tensors whose name matches", placeholder="embed")
        with gr.Row():
            subfolder = gr.Textbox(label="Folder inside the repository", placeholder="unet")
            seed = gr.Textbox("0", label="Seed of the sample")
        yield [mode, budget, include, exclude, subfolder, seed]


def reading_of(values: Sequence[Any]) -> Reading:
    """Build a `Reading` from the values of those fields."""
    return Reading(*map(typed, values))


def typed(value: Any) -> str:
    """The value of a field as text; the page sends null for an empty field."""
    return "" if value is None else str(value)
