"""Defines the sparsity page: two checkpoints or a trajectory, and the fraction of weights that changed."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gradio as gr

from analyzers import limits
from analyzers.update_sparsity.report import SparsityRequest
from components.examples.finished import finished_example
from components.forms.checkpoint_picker import build_picker, wire_search
from components.forms.fields import QUIET, READING, Fields, build_busy, build_buttons, build_examples, build_options, build_rest, build_rows
from components.forms.form import Typed, typed
from components.running.analysis_page import AnalysisPage
from components.sparsity.result import RESULT

# Most pickers for tuned checkpoints. A picker accepts several references, so the last one takes the rest.
MOST = min(12, limits.TRAJECTORY)
_FOCUS = "() => setTimeout(() => [...document.querySelectorAll('.m-picker input')].filter(e => e.offsetParent).at(-1)?.focus(), 100)"
_FOCUS_ADD = "() => setTimeout(() => document.querySelector('#m-add')?.focus(), 100)"


@dataclass(frozen=True, slots=True)
class Pickers:
    """The pickers of checkpoints. rows: contain all of ``tuned`` but the first; shown: number of tuned pickers on the page."""

    base: gr.Dropdown
    tuned: list[gr.Dropdown]
    rows: list[gr.Row]
    add: gr.Button
    shown: gr.State

    def components(self) -> list[Any]:
        """List all components, as the outputs of an event."""
        return [self.base, *self.tuned, *self.rows, self.add, self.shown]


def fill(base: str | None, tuned: Sequence[str | None]) -> list[Any]:
    """Return updates of the pickers' components that show these references, one picker each and at least one."""
    first, rest = list(tuned[:MOST]), [name for name in tuned[MOST:] if name]
    if rest:
        first[-1] = ", ".join([typed(first[-1]), *rest])
    count = max(1, len(first))
    values = [*first, *[None] * (MOST - len(first))]
    rows = [gr.update(visible=row < count) for row in range(1, MOST)]
    return [base or None, *[value or None for value in values], *rows, gr.update(visible=count < MOST), count]


def build_pickers(build_others: Callable[[], None]) -> Pickers:
    """Lay out the pickers, and call ``build_others`` in their first row. Call inside a page."""
    with gr.Row(elem_classes="m-ask m-pair-ask"):
        base = build_picker("Base checkpoint", "m-base")
        swap = gr.Button("Swap", variant="secondary", size="sm", elem_id="m-swap", elem_classes="m-small")
        tuned = [build_picker("Tuned checkpoint", "m-tuned-1")]
        build_others()
    rows, removes = [], []
    for number in range(2, MOST + 1):
        with gr.Row(visible=False, elem_classes="m-ask m-later") as row:
            tuned.append(build_picker(f"Tuned checkpoint {number}", f"m-tuned-{number}"))
            removes.append(gr.Button("Remove", variant="secondary", size="sm", elem_classes="m-small"))
        rows.append(row)
    add = gr.Button("Add checkpoint", variant="secondary", size="sm", elem_id="m-add", elem_classes="m-small")
    wire_search([base, *tuned])
    pickers = Pickers(base, tuned, rows, add, gr.State(1))
    _wire(pickers, swap, removes)
    return pickers


def _wire(pickers: Pickers, swap: gr.Button, removes: Sequence[gr.Button]) -> None:
    swap.click(None, [pickers.base, pickers.tuned[0]], [pickers.base, pickers.tuned[0]], js="(base, tuned) => [tuned, base]", **QUIET)

    def more(shown: int, base: str | None, *tuned: str | None) -> list[Any]:
        return fill(base, [*tuned[:shown], None][:MOST])

    def fewer(number: int, shown: int, base: str | None, *tuned: str | None) -> list[Any]:
        return fill(base, [*tuned[:number], *tuned[number + 1 : shown]])

    inputs, outputs = [pickers.shown, pickers.base, *pickers.tuned], pickers.components()
    pickers.add.click(more, inputs, outputs, queue=False, **QUIET).success(None, js=_FOCUS, **QUIET)
    for number, remove in enumerate(removes, 1):
        gone = remove.click(lambda *values, number=number: fewer(number, *values), inputs, outputs, queue=False, **QUIET)
        gone.success(None, js=_FOCUS_ADD, **QUIET)


@dataclass(frozen=True)
class PairFields(Fields):
    """Fields with a picker for each reference in ``tuned``."""

    pickers: Pickers

    def read(self, given: Mapping[Any, Any]) -> Typed:
        """Return what is typed, with the texts of all pickers."""
        return {**super().read(given), "tuned": [typed(given.get(picker)) for picker in self.pickers.tuned]}

    def fill(self, form: Typed, only: Collection[str] | None = None) -> dict[Any, Any]:
        """Return updates that set the widgets, and show as many pickers as are needed."""
        pickers = zip(self.pickers.components(), fill(form.get("base"), form.get("tuned", ())), strict=True)
        return super().fill(form, only) | dict(pickers)

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
        widgets = {"base": pickers.base} | {f"tuned {number}": picker for number, picker in enumerate(pickers.tuned, 1)}
        widgets |= build_rows(SparsityRequest, *READING, ("eta", "spectral"))
        widgets |= build_rest(SparsityRequest, widgets)
    return PairFields(widgets, buttons[0], buttons[1], chips, pickers)


# Label of each example button -> the values that it fills in.
EXAMPLES = {
    "tiny-bf16 → tiny-tuned": {"base": "sample:tiny-bf16", "tuned": ["sample:tiny-tuned"]},
    "trajectory: tiny-bf16 → tiny-step-1 to 4": {"base": "sample:tiny-bf16", "tuned": [f"sample:tiny-step-{step}" for step in range(1, 5)]},
    "R1-Distill-Qwen-1.5B → DeepScaleR-1.5B": {
        "base": "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
        "tuned": ["agentica-org/DeepScaleR-1.5B-Preview"],
    },
    "Qwen2.5-Math-1.5B → R1-Distill-Qwen-1.5B": {"base": "Qwen/Qwen2.5-Math-1.5B", "tuned": ["deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"]},
}

PAGE = AnalysisPage(
    name="sparsity",
    question="What did this fine-tune change?",
    about="Enter a checkpoint and a fine-tune of it: Mantissa reads the same sample of both (64 MB each, a few seconds, whatever their "
    "size) and reports what fraction of the weights changed at bf16 resolution, where, and by how much.",
    examples=EXAMPLES,
    fields=build_fields,
    result=RESULT,
    below=partial(finished_example, "sparsity"),
    key="base",
)
