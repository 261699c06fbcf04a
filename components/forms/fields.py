"""The fields of a page: the question with its buttons and examples, the options about weights, and those about running a model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from components.forms.form import BUILTIN, DATASET
from components.forms.picker import build_picker, wire_search
from components.text.render import macros

QUIET: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
# Filled by page.js when Enter is pressed while an analysis runs.
_BUSY = '<p id="m-busy" role="status"></p>'


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of a form, in its order, with the buttons that start and stop a run and the examples.

    filled: the components that prefilling updates, if they are more than the fields; subject: how many of them, the first ones, name what
    is analyzed.
    """

    values: list[Any]
    go: gr.Button
    stop: gr.Button
    chips: list[gr.Button]
    filled: list[Any]
    subject: int = 1


@dataclass(frozen=True, slots=True)
class Controls:
    """examples: buttons to disable while an analysis runs. again: recomputes a result shown from the library."""

    go: gr.Button
    stop: gr.Button
    examples: Sequence[gr.Button]
    again: gr.Button

    def components(self) -> list[Any]:
        """All components, as the outputs of an event."""
        return [self.go, self.stop, self.again, *self.examples]

    def busy(self, running: bool) -> dict[Any, Any]:
        """Updates for when an analysis starts (``running``) or ends."""
        return {
            self.go: gr.update(visible=not running),
            self.stop: gr.update(visible=running),
            self.again: gr.update(visible=False),
            **{button: gr.update(interactive=not running) for button in self.examples},
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


def build_reading() -> list[Any]:
    """The fields of a `ReadingForm`, in order. Call inside the folded options."""
    with gr.Row():
        mode = gr.Radio([("Quick: a sample", "quick"), ("Exact: every byte", "exact")], value="quick", label="Mode")
        budget = gr.Textbox(label="Budget of quick mode", placeholder="64MB")
    with gr.Row():
        include = gr.Textbox(label="Only tensors whose name matches (regular expression)", placeholder="mlp")
        exclude = gr.Textbox(label="Exclude tensors whose name matches", placeholder="embed")
    with gr.Row():
        subfolder = gr.Textbox(label="Folder inside the repository", placeholder="unet")
        seed = gr.Textbox("0", label="Seed of the sample")
    return [mode, budget, include, exclude, subfolder, seed]


def build_options() -> gr.Accordion:
    """The folded section for options."""
    return gr.Accordion("Options", open=False, elem_classes="m-options", elem_id="m-options")


def build_model_fields(
    button: str,
    examples: Sequence[str],
    blocks: Sequence[Callable[[], list[Any]]],
    label: str = "Model: org/name or org/name@revision, or a sample",
) -> Fields:
    """Lay out the model picker with its button, the examples, and the fields from ``blocks``, one below the other in a folded section. Call
    inside a page.

    examples: labels of the example buttons.
    """
    with gr.Row(elem_classes="m-ask"):
        model = build_picker(label, "m-model")
        go, stop = build_buttons(button)
    build_busy()
    wire_search([model])
    chips = build_examples(examples)
    values: list[Any] = [model]
    with build_options(), gr.Column(elem_classes="m-fields"):
        values += [field for build in blocks for field in build()]
    return Fields(values, go, stop, chips, values)


def build_text(
    sources: Sequence[tuple[str, str]],
    info: str,
    numbers: Callable[[], list[Any]],
    own: tuple[str, Mapping[str, Any]] | None = None,
) -> list[Any]:
    """Lay out the choice of text: its source, the fields from ``numbers``, the visitor's own text, and a dataset. Returns them in that
    order.

    sources: further (label, value) kinds of text next to the built-in one and a dataset; own: the kind for the visitor's own text and the
    settings of its field, if there is one.
    """
    with gr.Row():
        source = build_choice([("Built-in text", BUILTIN), *sources, ("A Hub dataset", DATASET)], "Text", info, "m-source", scale=2)
        amounts = numbers()
    texts = {own[0]: gr.Textbox(lines=6, max_lines=16, visible=False, **own[1])} if own else {}
    texts[DATASET] = gr.Textbox(
        label="Dataset",
        info="The id of a public dataset with instruction and output, prompt and completion, or messages.",
        placeholder="tatsu-lab/alpaca",
        visible=False,
        elem_id="m-dataset",
    )

    def choose(source: str) -> Any:
        updates = [gr.update(visible=source == kind) for kind in texts]
        return updates if len(updates) > 1 else updates[0]

    source.change(choose, source, list(texts.values()), queue=False, **QUIET)
    return [source, *amounts, *texts.values()]


def build_tooltips(meanings: Mapping[str, str]) -> None:
    """The meanings of names on the page, which page.js shows as tooltips. Call inside a page."""
    gr.HTML(str(macros("text/templates/pieces.html").names(meanings)), elem_classes="m-plain", visible="hidden")


def build_number(label: str, placeholder: str, info: str, name: str | None = None, width: int = 120) -> gr.Textbox:
    """A narrow number field; ``placeholder`` shows the default."""
    return gr.Textbox(label=label, placeholder=placeholder, info=info, elem_id=name, min_width=width)


def build_choice(choices: Sequence[Any], label: str, info: str, name: str | None = None, **settings: Any) -> gr.Radio:
    """A choice of one of several values, each a text or (label, value); the first is the default."""
    first = choices[0] if isinstance(choices[0], str) else choices[0][1]
    return gr.Radio(choices, value=first, label=label, info=info, elem_id=name, **settings)


def build_attention(info: str) -> gr.Radio:
    """The choice of attention implementation."""
    return build_choice(["sdpa", "eager"], "Attention", info)


def build_dtype() -> gr.Radio:
    """The choice of the dtype in which the model runs."""
    choices = [("automatic", "auto"), "float32", "bfloat16", "float16"]
    return build_choice(choices, "Run the model in", "Automatic: float32 on a CPU, as stored on a GPU.")
