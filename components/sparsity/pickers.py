"""The choice of checkpoints: a base, and one tuned checkpoint or the several of a trajectory."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from analyzers import limits
from components.forms.options import typed
from components.forms.picker import build_picker, wire_search
from components.running.wiring import QUIET

# Pickers for tuned checkpoints. Each accepts several references, so the last takes the rest.
MOST = min(12, limits.TRAJECTORY)
_FOCUS = "() => setTimeout(() => [...document.querySelectorAll('.m-picker input')].filter(e => e.offsetParent).at(-1)?.focus(), 100)"
_FOCUS_ADD = "() => setTimeout(() => document.querySelector('#m-add')?.focus(), 100)"


@dataclass(frozen=True, slots=True)
class Pickers:
    """The pickers. ``rows`` hold all of ``tuned`` but the first; ``shown`` counts the tuned ones on the page."""

    base: gr.Dropdown
    tuned: list[gr.Dropdown]
    rows: list[gr.Row]
    add: gr.Button
    shown: gr.State

    def components(self) -> list[Any]:
        """All components, as the outputs of an event."""
        return [self.base, *self.tuned, *self.rows, self.add, self.shown]

    def fill(self, base: str | None, tuned: Sequence[str | None]) -> list[Any]:
        """Updates of `components` with these references, showing one picker per reference and at least one."""
        first, rest = list(tuned[:MOST]), [name for name in tuned[MOST:] if name]
        if rest:
            first[-1] = ", ".join([typed(first[-1]), *rest])
        count = max(1, len(first))
        values = [*first, *[None] * (MOST - len(first))]
        rows = [gr.update(visible=row < count) for row in range(1, MOST)]
        return [base or None, *[value or None for value in values], *rows, gr.update(visible=count < MOST), count]


def build_pickers(beside: Any) -> Pickers:
    """Lay out the pickers, and call ``beside`` in their first row. Call inside a page."""
    with gr.Row(elem_classes="m-ask m-pair-ask"):
        base = build_picker("Base checkpoint", "m-base")
        swap = gr.Button("Swap", variant="secondary", size="sm", elem_id="m-swap", elem_classes="m-small")
        tuned = [build_picker("Tuned checkpoint", "m-tuned-1")]
        beside()
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
        return pickers.fill(base, [*tuned[:shown], None][:MOST])

    def fewer(number: int, shown: int, base: str | None, *tuned: str | None) -> list[Any]:
        return pickers.fill(base, [*tuned[:number], *tuned[number + 1 : shown]])

    inputs, outputs = [pickers.shown, pickers.base, *pickers.tuned], pickers.components()
    pickers.add.click(more, inputs, outputs, queue=False, **QUIET).success(None, js=_FOCUS, **QUIET)
    for number, remove in enumerate(removes, 1):
        gone = remove.click(lambda *values, number=number: fewer(number, *values), inputs, outputs, queue=False, **QUIET)
        gone.success(None, js=_FOCUS_ADD, **QUIET)
