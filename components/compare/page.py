"""Defines the compare page: two models or more, and what they are to each other."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from analyzers.compare.report import CompareRequest
from components.compare.result import RESULT
from components.forms.checkpoint_picker import build_picker, wire_search
from components.forms.fields import QUIET, READING, Fields, build_busy, build_buttons, build_examples, build_options, build_rest, build_rows
from components.forms.form import Typed, typed
from components.parents.suggestions import build_suggestions
from components.running.analysis_page import AnalysisPage

# Fewest and most pickers. A picker accepts several references, so the last one takes the rest.
FEWEST, MOST = 2, 12
_FOCUS = "() => setTimeout(() => [...document.querySelectorAll('.m-picker input')].filter(e => e.offsetParent).at(-1)?.focus(), 100)"
_FOCUS_ADD = "() => setTimeout(() => document.querySelector('#m-add')?.focus(), 100)"


@dataclass(frozen=True, slots=True)
class Pickers:
    """The pickers of checkpoints. rows: contain all but the first `FEWEST`; shown: number of pickers on the page."""

    models: list[gr.Dropdown]
    rows: list[gr.Row]
    add: gr.Button
    shown: gr.State

    def components(self) -> list[Any]:
        """List all components, as the outputs of an event."""
        return [*self.models, *self.rows, self.add, self.shown]


def fill(models: Sequence[str | None]) -> list[Any]:
    """Return updates of the pickers' components that show these references, one picker each."""
    first, rest = list(models[:MOST]), [name for name in models[MOST:] if name]
    if rest:
        first[-1] = ", ".join([typed(first[-1]), *rest])
    count = max(FEWEST, len(first))
    values = [*first, *[None] * (MOST - len(first))]
    rows = [gr.update(visible=row < count) for row in range(FEWEST, MOST)]
    return [*[value or None for value in values], *rows, gr.update(visible=count < MOST), count]


def build_pickers(build_others: Callable[[], None]) -> Pickers:
    """Lay out the pickers, and call ``build_others`` in their first row. Call inside a page."""
    with gr.Row(elem_classes="m-ask m-pair-ask"):
        first = build_picker("Model, or base", "m-model-1")
        swap = gr.Button("Swap", variant="secondary", size="sm", elem_id="m-swap", elem_classes="m-small")
        models = [first, build_picker("Model to compare with it (empty: those of its card and the library)", "m-model-2")]
        build_others()
    rows, removes = [], []
    for number in range(FEWEST + 1, MOST + 1):
        with gr.Row(visible=False, elem_classes="m-ask m-later") as row:
            models.append(build_picker(f"Model {number}", f"m-model-{number}"))
            removes.append(gr.Button("Remove", variant="secondary", size="sm", elem_classes="m-small"))
        rows.append(row)
    add = gr.Button("Add model", variant="secondary", size="sm", elem_id="m-add", elem_classes="m-small")
    build_suggestions(models[1], first)
    wire_search(models)
    pickers = Pickers(models, rows, add, gr.State(FEWEST))
    _wire(pickers, swap, removes)
    return pickers


def _wire(pickers: Pickers, swap: gr.Button, removes: Sequence[gr.Button]) -> None:
    swap.click(None, pickers.models[:2], pickers.models[:2], js="(one, other) => [other, one]", **QUIET)

    def more(shown: int, *models: str | None) -> list[Any]:
        return fill([*models[:shown], None][:MOST])

    def fewer(number: int, shown: int, *models: str | None) -> list[Any]:
        return fill([*models[:number], *models[number + 1 : shown]])

    inputs, outputs = [pickers.shown, *pickers.models], pickers.components()
    pickers.add.click(more, inputs, outputs, queue=False, **QUIET).success(None, js=_FOCUS, **QUIET)
    for number, remove in enumerate(removes, FEWEST):
        gone = remove.click(lambda *values, number=number: fewer(number, *values), inputs, outputs, queue=False, **QUIET)
        gone.success(None, js=_FOCUS_ADD, **QUIET)


@dataclass(frozen=True)
class ModelsFields(Fields):
    """Fields with a picker for each model."""

    pickers: Pickers

    def read(self, given: Mapping[Any, Any]) -> Typed:
        """Return what is typed, with the texts of all pickers."""
        return {**super().read(given), "models": [typed(given.get(picker)) for picker in self.pickers.models]}

    def fill(self, form: Typed, only: Collection[str] | None = None) -> dict[Any, Any]:
        """Return updates that set the widgets, and show as many pickers as are needed."""
        return super().fill(form, only) | dict(zip(self.pickers.components(), fill(form.get("models", ())), strict=True))

    def outputs(self) -> list[Any]:
        """List all components that `fill` may update."""
        return list(dict.fromkeys([*self.pickers.components(), *super().outputs()]))


def build_fields(examples: list[str]) -> Fields:
    """Lay out the pickers with the buttons, the examples and the options. Call inside a page."""
    buttons: list[gr.Button] = []
    pickers = build_pickers(lambda: buttons.extend(build_buttons("Compare")))
    build_busy()
    chips = build_examples(examples)
    with build_options():
        widgets = {f"model {number}": picker for number, picker in enumerate(pickers.models, 1)}
        widgets |= build_rows(CompareRequest, *READING, ("eta", "spectral"))
        widgets |= build_rest(CompareRequest, widgets)
    return ModelsFields(widgets, buttons[0], buttons[1], chips, pickers)


# Label of each example button -> the values that it fills in.
EXAMPLES = {
    "tiny-bf16 and tiny-tuned": {"models": ["sample:tiny-bf16", "sample:tiny-tuned"]},
    "tiny-bf16 and tiny-bf16-as-fp32": {"models": ["sample:tiny-bf16", "sample:tiny-bf16-as-fp32"]},
    "trajectory: tiny-bf16, tiny-step-1 to 4": {"models": ["sample:tiny-bf16", *(f"sample:tiny-step-{step}" for step in range(1, 5))]},
    "R1-Distill-Qwen-1.5B and DeepScaleR-1.5B": {
        "models": ["deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "agentica-org/DeepScaleR-1.5B-Preview"]
    },
}

PAGE = AnalysisPage(
    name="compare",
    question="What are these models to each other?",
    about="Enter two models or more, the older one first if you know. Mantissa samples their weights (up to three times 64 MB of each, "
    "whatever their size) and says whether they are the same in another form, a fine-tune, a merge, a stack of layers or unrelated. One "
    "alone is compared with the base_model of its card, and with models of the library whose tensors have the same shapes.",
    examples=EXAMPLES,
    fields=build_fields,
    result=RESULT,
)
