"""Builds the fields of a page: the question with its buttons and examples, and the options."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr
from pydantic import BaseModel

from analyzers.core.options import choices, is_list, is_subject, offered, option_of
from components.forms.checkpoint_picker import build_picker, wire_search
from components.forms.form import BUILTIN, DATASET, Typed, typed
from components.text import macros

QUIET: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
# Rows of fields in every form about weights.
READING = (("mode", "budget"), ("include", "exclude"), ("subfolder", "seed"))
# Minimum widths in pixels: of text fields, two of which fit on a phone, and of choices.
_NARROW, _CHOICE = 140, 200
# Filled by page.js when Enter is pressed while an analysis runs.
_BUSY = '<p id="m-busy" role="status"></p>'
# Shown by page.css above the result of an example.
_CHOSEN = '<p class="m-chosen"><span class="m-tag m-label">Example</span> Not your model: enter its id above for its own result.</p>'


@dataclass(frozen=True, slots=True)
class Fields:
    """The widgets of a form by name, with the buttons that start and stop a run and the examples."""

    widgets: dict[str, Any]
    go: gr.Button
    stop: gr.Button
    chips: list[gr.Button]

    def read(self, given: Mapping[Any, Any]) -> Typed:
        """Return what is typed, from the values of the widgets. They are converted defensively: the page may send any type."""
        return {name: _as_typed(widget.value, given.get(widget)) for name, widget in self.widgets.items()}

    def fill(self, form: Typed, only: Collection[str] | None = None) -> dict[Any, Any]:
        """Return updates that set the widgets, or ``only`` those, to the values in ``form``, or else to their initial values."""
        return {widget: form.get(name, widget.value) for name, widget in self.widgets.items() if only is None or name in only}

    def outputs(self) -> list[Any]:
        """List all components that `fill` may update."""
        return list(self.widgets.values())

    def busy(self, running: bool) -> dict[Any, Any]:
        """Return updates of the buttons for when an analysis starts (``running``), which disables the examples, or ends."""
        buttons = {self.go: gr.update(visible=not running), self.stop: gr.update(visible=running)}
        return buttons | {chip: gr.update(interactive=not running) for chip in self.chips}


def _as_typed(first: Any, value: Any) -> Any:
    if isinstance(first, bool):
        return value if isinstance(value, bool) else first
    if isinstance(first, list):
        return list(map(typed, value)) if isinstance(value, list) else []
    return typed(value)


def build_buttons(name: str) -> tuple[gr.Button, gr.Button]:
    """Lay out the start button, labelled ``name``, and the Stop button that replaces it. Call in the row of the question."""
    go = gr.Button(name, variant="primary", elem_id="m-inspect", elem_classes="m-go")
    stop = gr.Button("Stop", variant="secondary", visible=False, elem_id="m-stop", elem_classes="m-go")
    return go, stop


def build_status() -> tuple[gr.HTML, gr.Button]:
    """Lay out the status line for progress, errors and notes on a result, and the button that recomputes a stored result."""
    gr.HTML(_CHOSEN, elem_classes="m-plain")
    status = gr.HTML(elem_id="m-status", elem_classes="m-plain")
    again = gr.Button("Compute again", visible=False, size="sm", elem_id="m-again", elem_classes="m-small")
    return status, again


def build_busy() -> None:
    """Lay out the notice that an analysis is already running. Call below the question."""
    gr.HTML(_BUSY, elem_classes="m-plain")


def build_examples(names: Sequence[str]) -> list[gr.Button]:
    """Lay out a button for each example, in a wrapping row."""
    with gr.Row(elem_classes="m-chips"):
        return [gr.Button(name, size="sm", scale=0) for name in names]


def build_widget(request: type[BaseModel], name: str) -> Any:
    """Make the widget of a request's field: a switch, a choice of one or several values, or a text field that shows its default."""
    option, default, values = option_of(request, name), request.model_fields[name].default, choices(request, name)
    settings: dict[str, Any] = {"label": option.label or name.replace("_", " ").capitalize(), "elem_id": f"m-{name.replace('_', '-')}"}
    info = request.model_fields[name].description if option.info is None else option.info
    settings |= {"info": info or None}
    if isinstance(default, bool):
        return gr.Checkbox(default, **settings)
    if values:
        labelled = list(zip(option.names or values, values, strict=True))
        if is_list(request, name):
            return gr.CheckboxGroup(labelled, value=list(default), **settings)
        return (gr.Dropdown if option.dropdown else gr.Radio)(labelled, value=default, min_width=_CHOICE, **settings)
    shown = "" if default in (None, ()) else f"{default:.12g}" if isinstance(default, float) else str(default)
    return gr.Textbox(placeholder=shown if option.example is None else option.example, min_width=_NARROW, **settings)


def build_rows(request: type[BaseModel], *rows: Sequence[str]) -> dict[str, Any]:
    """Lay out the widgets of a request's fields, one row of names below the other."""
    widgets: dict[str, Any] = {}
    for row in rows:
        with gr.Row():
            widgets |= {name: build_widget(request, name) for name in row}
    return widgets


def build_rest(request: type[BaseModel], widgets: Mapping[str, Any]) -> dict[str, Any]:
    """Lay out the widgets of options that are not yet in ``widgets``, two to a row."""
    rest = [name for name in offered(request, "site") if name not in widgets and not is_subject(request, name)]
    return build_rows(request, *(rest[first : first + 2] for first in range(0, len(rest), 2)))


def build_options() -> gr.Accordion:
    """Lay out the folded section for options."""
    return gr.Accordion("Options", open=False, elem_classes="m-options", elem_id="m-options")


def build_model_fields(
    request: type[BaseModel],
    button: str,
    examples: Sequence[str],
    blocks: Sequence[Callable[[], dict[str, Any]]] = (),
    label: str = "Model: org/name or org/name@revision, or a sample",
) -> Fields:
    """Lay out the model picker with its button, the examples, and in a folded section the widgets from ``blocks``, then those of the other
    options. Call inside a page.

    examples: labels of the example buttons.
    """
    with gr.Row(elem_classes="m-ask"):
        widgets: dict[str, Any] = {"model": build_picker(label, "m-model")}
        go, stop = build_buttons(button)
    build_busy()
    wire_search([widgets["model"]])
    chips = build_examples(examples)
    with build_options(), gr.Column(elem_classes="m-fields"):
        for build in blocks:
            widgets |= build()
        widgets |= build_rest(request, widgets)
    return Fields(widgets, go, stop, chips)


def build_text(
    sources: Sequence[tuple[str, str]],
    info: str,
    amounts: Sequence[str],
    request: type[BaseModel],
    own: tuple[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Lay out the choice of ``data``: its source, the fields ``amounts`` of the request, the visitor's own text, and a ``dataset``.

    sources: further (label, value) kinds of text next to the built-in one and a dataset; own: the kind for the visitor's own text and the
    settings of its field, if there is one.
    """
    with gr.Row():
        kinds = [("Built-in text", BUILTIN), *sources, ("A Hub dataset", DATASET)]
        source = gr.Radio(kinds, value=BUILTIN, label="Text", info=info, elem_id="m-source", scale=2)
        widgets = {"data": source} | {name: build_widget(request, name) for name in amounts}
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
    return widgets | texts


def build_copied(label: str, name: str, lines: int = 1, most: int | None = None, visible: bool = True) -> gr.Textbox:
    """Lay out a text to copy, with element id ``name``. most: lines before it scrolls, by default ``lines``."""
    return gr.Textbox(label=label, interactive=False, lines=lines, max_lines=most or lines, buttons=["copy"], elem_id=name, visible=visible)


def build_tooltips(meanings: Mapping[str, str]) -> None:
    """Lay out the meanings of names on the page, which page.js shows as tooltips. Call inside a page."""
    gr.HTML(macros("text/templates/pieces.html").names(meanings), elem_classes="m-plain", visible="hidden")
