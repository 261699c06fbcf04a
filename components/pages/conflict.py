"""The conflict page: a model and a text, and how the gradients of the samples conflict in its neurons."""

import gradio as gr

from components.conflict.fields import build_fields
from components.conflict.form import DATASET, Form, form
from components.conflict.meter import LayerMeter
from components.conflict.result import RESULT
from components.running.model_page import ModelPage

# Label of each example button, and its form. The last is `analyzers.gradient_conflict.published.SETTING`, as typed.
EXAMPLES = {
    "tiny-bf16": Form("sample:tiny-bf16"),
    "tiny-bf16, top-k in all layers": Form("sample:tiny-bf16", ffn="topk", topk_layers="all"),
    "tiny-bf16, attention": Form("sample:tiny-bf16", unit="attention"),
    "SmolLM2-135M": Form("HuggingFaceTB/SmolLM2-135M", samples="16", max_length="128"),
    "Llama-2-7b, the published run": Form(
        "meta-llama/Llama-2-7b-hf",
        DATASET,
        samples="50",
        max_length="2048",
        dataset="tatsu-lab/alpaca",
        template="alpaca-input",
        ffn="topk",
        dtype="float32",
        seed="10",
    ),
}
_TITLE = """<header class="m-title"><h1>Do training samples conflict in the same neuron?</h1>
<p>Name a model. Mantissa runs one forward and backward pass over a few dozen samples and reports how often their gradients of the same
neuron point in opposite directions, in which layers, and whether one sample dominates. A sample model takes seconds.</p></header>"""
_NOT_LINKED = "The pairs of this analysis were too long for a link: paste them again, then press Measure."


PAGE = ModelPage("Conflict", _TITLE, EXAMPLES, Form, form, build_fields, RESULT, LayerMeter, "pairs", _NOT_LINKED)


def build(page: gr.Blocks) -> None:
    """Lay out the page and wire it. Call inside ``page``."""
    PAGE.build(page)
