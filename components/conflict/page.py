"""Defines the conflict page: a model and a text, and how the gradients of the samples conflict in its neurons."""

from typing import Any

import gradio as gr

from analyzers.gradient_conflict import ConflictRequest
from components.conflict.form import PAIRS
from components.conflict.result import RESULT
from components.forms.fields import QUIET, Fields, build_model_fields, build_rows, build_text
from components.forms.form import DATASET
from components.running.analysis_page import AnalysisPage

_PAIRS = {
    "label": "Pairs",
    "info": "One per line: a JSON object with instruction and output (and optionally input), or both separated by a tab.",
    "placeholder": '{"instruction": "Name the capital of France.", "output": "Paris."}',
    "elem_id": "m-pairs",
}


def build_fields(examples: list[str]) -> Fields:
    """Lay out the fields. examples: labels of the example buttons. Call inside a page."""
    return build_model_fields(ConflictRequest, "Measure", examples, [_text, _gradients])


def _text() -> dict[str, Any]:
    info = "Instructions and answers. The loss is taken over the answers' tokens."
    return build_text([("My own pairs", PAIRS)], info, ("samples", "max_length", "choice", "template"), ConflictRequest, (PAIRS, _PAIRS))


def _gradients() -> dict[str, Any]:
    """Lay out the choice of gradients, the settings of a top-k FFN, which are visible if that is chosen, and the remaining options."""
    compared = build_rows(ConflictRequest, ("unit", "ffn"))
    with gr.Column(visible=False, elem_classes="m-flush") as topk_fields:
        topk = build_rows(ConflictRequest, ("topk", "topk_layers", "topk_share"), ("select",))
    ffn = compared["ffn"]
    ffn.change(lambda ffn: gr.update(visible=ffn == "topk"), ffn, topk_fields, queue=False, **QUIET)
    rest = build_rows(ConflictRequest, ("loss", "gamma", "epsilon"), ("dtype", "attention", "seed"), ("checkpointing", "weights"))
    return compared | topk | rest


# Label of each example button -> the values that it fills in. The last has those of `analyzers.gradient_conflict.published.SETTING`.
EXAMPLES = {
    "tiny-bf16": {"model": "sample:tiny-bf16"},
    "tiny-bf16, top-k in all layers": {"model": "sample:tiny-bf16", "ffn": "topk", "topk_layers": "all"},
    "tiny-bf16, attention": {"model": "sample:tiny-bf16", "unit": "attention"},
    "SmolLM2-135M": {"model": "HuggingFaceTB/SmolLM2-135M", "samples": "16", "max_length": "128"},
    "Llama-2-7b, the published run": {
        "model": "meta-llama/Llama-2-7b-hf",
        "data": DATASET,
        "samples": "50",
        "max_length": "2048",
        "dataset": "tatsu-lab/alpaca",
        "template": "alpaca-input",
        "ffn": "topk",
        "dtype": "float32",
        "seed": "10",
    },
}
PAGE = AnalysisPage(
    name="conflict",
    question="Do training samples conflict in the same neuron?",
    about="Enter a model: Mantissa runs a few dozen samples forward and backward, and reports how often their gradients of the same neuron "
    "point in opposite directions, in which layers, and whether one sample dominates.",
    examples=EXAMPLES,
    fields=build_fields,
    result=RESULT,
    missing={"pairs": "The pairs of this analysis were too long for a link: paste them again, then press Measure."},
)
