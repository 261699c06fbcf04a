"""The precision page: how rounding error grows through the layers of a model, for each precision variant."""

from typing import Any

import gradio as gr

from components.precision.fields import build_fields
from components.precision.form import Form, form
from components.precision.meter import VariantMeter
from components.precision.result import RESULT
from components.running.model_page import ModelPage

_SHORT: dict[str, Any] = {"sequences": "2", "sequence_length": "128"}
_FP16 = ("bf16", "fp16", "fp16_autocast", "fp16_max_precision")
# Label of each example button, and its form.
EXAMPLES = {
    "tiny-bf16": Form("sample:tiny-bf16", **_SHORT),
    "tiny-overflow, fp16": Form("sample:tiny-overflow", _FP16, **_SHORT),
    "tiny-fp32, computation only": Form("sample:tiny-fp32", **_SHORT, pre_rounded=True),
    "tiny-bf16, GSPO, inside layers": Form("sample:tiny-bf16", ("bf16", "bf16_fp32_softmax", "fp16"), **_SHORT, loss="gspo", inside=True),
    "SmolLM2-135M": Form("HuggingFaceTB/SmolLM2-135M", **_SHORT),
}
_TITLE = """<header class="m-title"><h1>What does rounding do to this model?</h1>
<p>Run a model in bf16, fp16, or with some parts in fp32, forward and backward, and compare it with fp32 layer by layer. A sample model
takes seconds.</p></header>"""
_NOT_LINKED = "The text of this analysis was too long for a link: paste it again, then press Run."


PAGE = ModelPage("Precision", _TITLE, EXAMPLES, Form, form, build_fields, RESULT, VariantMeter, "text", _NOT_LINKED)


def build(page: gr.Blocks) -> None:
    """Lay out the page and wire it. Call inside ``page``."""
    PAGE.build(page)
