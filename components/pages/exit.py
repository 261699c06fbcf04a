"""The exit page: how close gradients without backpropagation are to the exact one at the head of a model."""

import gradio as gr

from components.exit.fields import build_fields
from components.exit.form import Form, form
from components.exit.meter import SignalMeter
from components.exit.result import RESULT
from components.running.model_page import ModelPage

# Label of each example button, and its form.
EXAMPLES = {
    "tiny-bf16": Form("sample:tiny-bf16"),
    "tiny-bf16, quick": Form("sample:tiny-bf16", sweep=False, training_steps="0", layers="final"),
    "tiny-fp32, span and ceilings": Form("sample:tiny-fp32", ("parallel", "span", "svd", "true_rows"), anchors="16", rank="16"),
    "SmolLM2-135M": Form("HuggingFaceTB/SmolLM2-135M", seeds="4", samples="16", sequence_length="128", tokens="256"),
}
_TITLE = """<header class="m-title"><h1>How good is a gradient without backpropagation?</h1>
<p>Name a model. At its head, Mantissa replaces the gradient that backpropagation would send into the model by cheaper signals, and reports
how close each is to the exact one, token by token, what it costs, and what a small transformer learns from it. A sample model takes half a
minute.</p></header>"""


PAGE = ModelPage("Exit", _TITLE, EXAMPLES, Form, form, build_fields, RESULT, SignalMeter)


def build(page: gr.Blocks) -> None:
    """Lay out the page and wire it. Call inside ``page``."""
    PAGE.build(page)
