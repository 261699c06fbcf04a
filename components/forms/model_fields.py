"""Fields shared by the pages of all analyses that run a model: the model, the text, and the options."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import gradio as gr

from components.forms.controls import build_busy, build_buttons, build_examples
from components.forms.model_form import BUILTIN, DATASET
from components.forms.options import typed
from components.forms.picker import build_picker, wire_search
from components.running.wiring import QUIET

_Form = TypeVar("_Form")


@dataclass(frozen=True, slots=True)
class Fields:
    """values: the fields in form order; chips: the example buttons."""

    values: list[Any]
    go: gr.Button
    stop: gr.Button
    chips: list[gr.Button]


def form_of(kind: type[_Form], values: Sequence[Any]) -> _Form:
    """Build a form of ``kind`` from the field values. Values are converted defensively: the page may send any type."""
    return kind(*(_known(each.default, value) for each, value in zip(fields(kind), values, strict=True)))  # type: ignore[arg-type]


def _known(default: Any, value: Any) -> Any:
    if isinstance(default, bool):
        return value if isinstance(value, bool) else default
    if isinstance(default, tuple):
        return tuple(map(typed, value)) if isinstance(value, list) else ()
    return typed(value)


def build_fields(
    button: str, examples: Sequence[str], blocks: Sequence[Callable[[], list[Any]]], options: Callable[[], list[Any]]
) -> Fields:
    """Lay out the model picker with its button, the fields from ``blocks``, and those from ``options`` in a folded section. Call inside a
    page.

    examples: labels of the example buttons.
    """
    with gr.Row(elem_classes="m-ask"):
        model = build_picker("Model: org/name, perhaps @revision, or a sample", "m-model")
        go, stop = build_buttons(button)
    build_busy()
    wire_search([model])
    chips = build_examples(examples)
    with gr.Column(elem_classes="m-options m-fields"):
        built = [field for build in blocks for field in build()]
    with gr.Accordion("Options", open=False, elem_classes="m-options", elem_id="m-options"):
        built += options()
    return Fields([model, *built], go, stop, chips)


def build_text(
    sources: Sequence[tuple[str, str]],
    info: str,
    numbers: Callable[[], list[Any]],
    own: tuple[str, Callable[[], gr.Textbox]] | None = None,
) -> list[Any]:
    """Lay out the choice of text: its source, the fields from ``numbers``, the visitor's own text, and a dataset. Returns them in that
    order.

    sources: further (label, value) kinds of text besides the built-in one and a dataset; own: the kind for the visitor's own text and the
    function that builds its field, if there is one.
    """
    with gr.Row():
        source = gr.Radio(
            [("Built-in text", BUILTIN), *sources, ("A Hub dataset", DATASET)],
            value=BUILTIN,
            label="Text",
            info=info,
            elem_id="m-source",
            scale=2,
        )
        beside = numbers()
    texts = {own[0]: own[1]()} if own else {}
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
    return [source, *beside, *texts.values()]


def build_number(label: str, placeholder: str, info: str, name: str | None = None, width: int = 120) -> gr.Textbox:
    """A narrow number field; ``placeholder`` shows the default."""
    return gr.Textbox(label=label, placeholder=placeholder, info=info, elem_id=name, min_width=width)


def build_attention(info: str) -> gr.Radio:
    """The choice of attention implementation."""
    return gr.Radio(["sdpa", "eager"], value="sdpa", label="Attention", info=info)
