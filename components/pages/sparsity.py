"""The sparsity page: two checkpoints or a trajectory, and the fraction of weights that changed."""

from dataclasses import astuple
from typing import Any

import gradio as gr

from analyzers.errors import MantissaError
from analyzers.update_sparsity.report import DEFAULT_ETA
from components.forms.controls import Controls, build_busy, build_buttons, build_examples, build_status
from components.forms.links import Query
from components.forms.options import options, reading_of, typed
from components.look.navigation import build_navigation
from components.results.result_tabs import build_result
from components.running.runs import Runs, failed
from components.running.wiring import wire_address, wire_links, wire_runs
from components.sparsity.form import Form, form
from components.sparsity.pickers import MOST, Pickers, build_pickers
from components.sparsity.result import RESULT

# Label of each example button: base and tuned checkpoints.
EXAMPLES: dict[str, tuple[str, tuple[str, ...]]] = {
    "tiny-bf16 → tiny-tuned": ("sample:tiny-bf16", ("sample:tiny-tuned",)),
    "trajectory: tiny-bf16 → tiny-step-1 to 4": ("sample:tiny-bf16", tuple(f"sample:tiny-step-{step}" for step in range(1, 5))),
    "R1-Distill-Qwen-1.5B → DeepScaleR-1.5B": (
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
        ("agentica-org/DeepScaleR-1.5B-Preview",),
    ),
    "Qwen2.5-Math-1.5B → R1-Distill-Qwen-1.5B": ("Qwen/Qwen2.5-Math-1.5B", ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",)),
}
_TITLE = """<header class="m-title"><h1>What did this fine-tune change?</h1>
<p>Name a checkpoint and what it was tuned to. Mantissa reads the same sample of both (64 MB each, a few seconds, whatever their size) and
reports what fraction of the weights changed at bf16 resolution, where, and by how much.</p></header>"""


def build(page: gr.Blocks) -> None:
    """Lay out the page and wire it. Call inside ``page``."""
    build_navigation("Sparsity")
    gr.HTML(_TITLE, elem_classes="m-plain")
    buttons: list[gr.Button] = []
    pickers = build_pickers(lambda: buttons.extend(build_buttons("Compare")))
    build_busy()
    chips = build_examples(list(EXAMPLES))
    with options() as reading, gr.Row():
        eta = gr.Textbox(label="Probe: eta, the smallest relative change that counts", placeholder=f"{DEFAULT_ETA:g}")
        spectral = gr.Checkbox(label="Take matrices apart too (singular values, subspaces; reads them whole, takes longer)")
    status, again = build_status()
    result = build_result(RESULT)
    runs = Runs(Controls(buttons[0], buttons[1], chips, again), status, result)
    fields = [pickers.base, *pickers.tuned, *reading, eta, spectral]
    examples = [(chip, pickers.fill(*asked)) for chip, asked in zip(chips, EXAMPLES.values(), strict=True)]
    wire_runs(runs, fields, _form, examples, pickers.components())
    wire_links([result.share])
    outputs = [*pickers.components(), *reading, eta, spectral, status]
    wire_address(page, "base", lambda query: _prefill(pickers, query), outputs, runs, form)


def _form(base: Any, *values: Any) -> Form:
    tuned, reading, (eta, spectral) = values[:MOST], values[MOST:-2], values[-2:]
    return Form(typed(base), [typed(each) for each in tuned], reading_of(reading), typed(eta), spectral is True)


def _prefill(pickers: Pickers, query: Query) -> list[Any]:
    """The fields and the status; an invalid query leaves the options unchanged."""
    asked = form(query)
    known = [*astuple(asked.reading), asked.eta, asked.spectral]
    if not asked.base and not asked.tuned:
        return [gr.skip()] * (len(pickers.components()) + len(known) + 1)
    named = pickers.fill(asked.base, asked.tuned)
    try:
        asked.request()
    except MantissaError as error:
        return [*named, *[gr.skip()] * len(known), failed(str(error))]
    return [*named, *known, ""]
