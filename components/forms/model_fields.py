"""The fields that the pages of all analyses that run a model have in common: the model, its text, and the options."""

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
    """values: the fields in the order of the form; chips: the examples."""

    values: list[Any]
    go: gr.Button
    stop: gr.Button
    chips: list[gr.Button]


def form_of(kind: type[_Form], values: Sequence[Any]) -> _Form:
    """The values of the fields as a form of ``kind``: nothing is believed to be of the type that the page sends."""
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
    """Lay out the picker of the model beside ``button``, what ``blocks`` build, and folded what ``options`` builds. Call inside a page.

    examples: what their buttons say.
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
    """What the model is run on: its source, beside it what ``numbers`` builds, the visitor's own text, a dataset; all of them in order.

    sources: kinds of text beside the built-in one and a dataset, each as (what it says, its value); own: the kind that is the visitor's
    own, and what builds its field, where there is one.
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
    """A narrow field for a number; ``placeholder`` is what counts where nothing is typed."""
    return gr.Textbox(label=label, placeholder=placeholder, info=info, elem_id=name, min_width=width)


def build_attention(info: str) -> gr.Radio:
    """Which implementation of attention runs."""
    return gr.Radio(["sdpa", "eager"], value="sdpa", label="Attention", info=info)
