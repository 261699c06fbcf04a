"""The home page: paste a model id, get its precision passport."""

from dataclasses import astuple
from typing import Any

import gradio as gr

from analyzers.errors import MantissaError
from components.forms.controls import Controls, build_busy, build_buttons, build_examples, build_status
from components.forms.links import Query
from components.forms.options import options, reading_of, typed
from components.forms.picker import build_picker, wire_search
from components.look.navigation import build_navigation
from components.passport.form import Form, form
from components.passport.result import RESULT
from components.passport.runs import PassportRuns
from components.passport.several import build_several
from components.results.result_tabs import build_result
from components.running.runs import failed
from components.running.wiring import QUIET, wire_address, wire_links, wire_runs

_THREE = "sample:tiny-fp32, sample:tiny-bf16-as-fp32, sample:tiny-overflow"
# Label of each example button, and its input.
EXAMPLES = {
    name: name
    for name in (
        "sample:tiny-bf16-as-fp32",
        "sample:tiny-overflow",
        "google-t5/t5-small",
        "EleutherAI/pythia-1b",
        "meta-llama/Llama-2-7b-hf",
    )
} | {"three samples": _THREE}
_TITLE = """<header class="m-title"><h1>What precision was this model trained in?</h1>
<p>Paste a Hub model id, or several. Mantissa reads a sample of its bytes (64 MB, a few seconds, whatever its size) and reports what they
prove and what they suggest.</p></header>"""
# A result opened with the keyboard also receives the focus.
_SHOW_RESULT = (
    "() => setTimeout(() => { document.querySelector('#m-result')?.scrollIntoView({block: 'start'}); "
    "document.querySelector('#m-result [role=tab]')?.focus({preventScroll: true}) }, 100)"
)


def build(page: gr.Blocks) -> None:
    """Lay out the page and wire it. Call inside ``page``."""
    build_navigation("Passport")
    gr.HTML(_TITLE, elem_classes="m-plain")
    with gr.Row(elem_classes="m-ask"):
        model = build_picker("Model id (org/name) or sample:tiny-bf16; several separated by commas or spaces", "m-model")
        go, stop = build_buttons("Inspect")
    build_busy()
    wire_search([model])
    chips = build_examples(list(EXAMPLES))
    with options() as reading:
        fields = [model, *reading]
    status, again = build_status()
    batch = gr.State()
    several = build_several()
    result = build_result(RESULT)
    runs = PassportRuns(Controls(go, stop, chips, again), status, result, several, batch)
    examples = [(chip, [asked]) for chip, asked in zip(chips, EXAMPLES.values(), strict=True)]
    halted = wire_runs(runs, fields, lambda model, *reading: Form(typed(model), reading_of(reading)), examples, [model])
    halted.then(runs.files, batch, runs.outputs(), queue=False, **QUIET)
    # always_last: else a row requested while another opens would be dropped
    row = several.table.click(runs.open, batch, runs.outputs(), trigger_mode="always_last", queue=False, **QUIET)
    row.success(None, js=_SHOW_RESULT, **QUIET)
    wire_links([result.share, several.share])
    wire_address(page, "model", _prefill, [*fields, status], runs, form)


def _prefill(query: Query) -> list[Any]:
    """The fields and the status; an invalid query leaves the options unchanged."""
    asked = form(query)
    if not asked.model:
        return [gr.skip()] * (2 + len(astuple(asked.reading)))
    try:
        asked.requests()
    except MantissaError as error:
        return [asked.model, *[gr.skip()] * len(astuple(asked.reading)), failed(str(error))]
    return [asked.model, *astuple(asked.reading), ""]
