"""The conflict page: a model and a text, and how the samples pull at its neurons."""

from dataclasses import astuple
from typing import Any

import gradio as gr

from analyzers.errors import MantissaError
from components.conflict.fields import build_fields, form_of
from components.conflict.form import DATASET, Form, form
from components.conflict.meter import LayerMeter
from components.conflict.result import build_result
from components.controls import Controls
from components.jobs import MODELS
from components.links import Query
from components.navigation import build_navigation
from components.runs import Runs, failed
from components.wiring import wire_address, wire_links, wire_runs

# What each example's button says, and what it asks for. The last is the published setting: `analyzers.gradient_conflict.published`.
EXAMPLES = {
    "tiny-bf16": Form("sample:tiny-bf16"),
    "tiny-bf16, top-k in all layers": Form("sample:tiny-bf16", ffn="topk", topk_layers="all"),
    "tiny-bf16, attention": Form("sample:tiny-bf16", unit="attention"),
    "SmolLM2-135M": Form("HuggingFaceTB/SmolLM2-135M", samples="16", max_length="128"),
    "Llama-2-7b, the published setting": Form("meta-llama/Llama-2-7b-hf", DATASET, dataset="tatsu-lab/alpaca", ffn="topk"),
}
_TITLE = """<header class="m-title"><h1>Do training samples pull the same neuron apart?</h1>
<p>Name a model. Mantissa runs it forward and backward once on a few dozen samples, and tells how often their gradients of the same neuron
point in opposite directions, in which layers, and whether one sample dominates. A sample model takes seconds.</p></header>"""
_NOT_LINKED = "The pairs of this analysis were too long for a link: paste them again, then press Measure."


def build(page: gr.Blocks) -> None:
    """Lay out the page and wire it. Call inside ``page``."""
    build_navigation("Conflict")
    gr.HTML(_TITLE, elem_classes="m-plain")
    fields = build_fields(list(EXAMPLES))
    status = gr.HTML(elem_id="m-status", elem_classes="m-plain")
    result = build_result()
    runs = Runs(Controls(fields.go, fields.stop, fields.chips), status, result, LayerMeter)
    examples = [(chip, list(astuple(asked))) for chip, asked in zip(fields.chips, EXAMPLES.values(), strict=True)]
    wire_runs(runs, fields.values, form_of, examples, fields.values, MODELS)
    wire_links([result.share])
    wire_address(page, "model", _prefill, [*fields.values, status])


def _prefill(query: Query) -> list[Any]:
    """The fields and the status; what cannot be asked for leaves all but the model as it is."""
    asked = form(query)
    values = list(astuple(asked))
    if not asked.model:
        return [*[gr.skip()] * len(values), ""]
    if dict(query).get("pairs") == "":
        return [*values, failed(_NOT_LINKED)]
    try:
        asked.request()
    except MantissaError as error:
        return [asked.model, *[gr.skip()] * (len(values) - 1), failed(str(error))]
    return [*values, ""]
