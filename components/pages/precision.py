"""The precision page: a model and ways of running it, and how the rounding of each grows through the layers."""

from typing import Any

import gradio as gr

from analyzers.errors import MantissaError
from components.controls import Controls
from components.jobs import MODELS
from components.links import Query
from components.navigation import build_navigation
from components.precision.fields import build_fields, form_of
from components.precision.form import Form, form
from components.precision.meter import VariantMeter
from components.precision.result import build_result
from components.runs import Runs, failed
from components.wiring import wire_address, wire_links, wire_runs

_SHORT: dict[str, Any] = {"sequences": "2", "sequence_length": "128"}
_FP16 = ("bf16", "fp16", "fp16_autocast", "fp16_max_precision")
# What each example's button says, and what it asks for.
EXAMPLES = {
    "tiny-bf16": Form("sample:tiny-bf16", **_SHORT),
    "tiny-overflow, fp16": Form("sample:tiny-overflow", _FP16, **_SHORT),
    "tiny-fp32, computation alone": Form("sample:tiny-fp32", **_SHORT, pre_rounded=True),
    "tiny-bf16, GSPO, inside layers": Form("sample:tiny-bf16", ("bf16", "bf16_fp32_softmax", "fp16"), **_SHORT, loss="gspo", inside=True),
    "SmolLM2-135M": Form("HuggingFaceTB/SmolLM2-135M", **_SHORT),
}
_TITLE = """<header class="m-title"><h1>What does rounding do to this model?</h1>
<p>Name a model and choose ways of running it: in bf16, in fp16, with the head or the residual stream in fp32. Mantissa runs each forward
and backward beside fp32, and tells how the error grows from layer to layer. A sample model takes seconds.</p></header>"""
_NOT_LINKED = "The text of this analysis was too long for a link: paste it again, then press Run."


def build(page: gr.Blocks) -> None:
    """Lay out the page and wire it. Call inside ``page``."""
    build_navigation("Precision")
    gr.HTML(_TITLE, elem_classes="m-plain")
    fields = build_fields(list(EXAMPLES))
    status = gr.HTML(elem_id="m-status", elem_classes="m-plain")
    result = build_result()
    runs = Runs(Controls(fields.go, fields.stop, fields.chips), status, result, VariantMeter)
    examples = [(chip, asked.values()) for chip, asked in zip(fields.chips, EXAMPLES.values(), strict=True)]
    wire_runs(runs, fields.values, form_of, examples, fields.values, MODELS)
    wire_links([result.share])
    wire_address(page, "model", _prefill, [*fields.values, status])


def _prefill(query: Query) -> list[Any]:
    """The fields and the status; what cannot be asked for leaves all but the model as it is."""
    asked = form(query)
    values = asked.values()
    if not asked.model:
        return [*[gr.skip()] * len(values), ""]
    if dict(query).get("text") == "":
        return [*values, failed(_NOT_LINKED)]
    try:
        asked.request()
    except MantissaError as error:
        return [asked.model, *[gr.skip()] * (len(values) - 1), failed(str(error))]
    return [*values, ""]
