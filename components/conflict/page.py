"""The conflict page: a model and a text, and how the gradients of the samples conflict in its neurons."""

from typing import Any

import gradio as gr

from analyzers import limits
from analyzers.base import Progress
from components.conflict.form import PAIRS, Form, form
from components.conflict.result import RESULT
from components.forms.fields import QUIET, Fields, build_attention, build_choice, build_dtype, build_model_fields, build_number, build_text
from components.forms.form import DATASET
from components.running.analysis_page import AnalysisPage
from components.running.progress import Meter, listed
from components.text import numbers

_MOST = 48


class LayerMeter(Meter):
    """Shows a bar for each of the layers measured so far, the last layer of the model first; at most the latest 48."""

    def found(self, progress: Progress) -> str:
        """The bars, in HTML."""
        from analyzers.gradient_conflict.report import MeasuredProgress

        if not isinstance(progress, MeasuredProgress) or not progress.rates:
            return ""
        rows = [(str(each.layer), numbers.share(each.conflict_rate), each.conflict_rate or 0.0) for each in progress.rates[-_MOST:]]
        return listed("In conflict, by layer", rows, "m-bars m-measured")


_SCORES = [("gate", "gate"), ("up", "up"), ("|up|", "abs-up"), ("gate x up", "product"), ("|gate x up|", "abs-product")]
_PAIRS = {
    "label": "Pairs",
    "info": "One per line: a JSON object with instruction and output (and optionally input), or both separated by a tab.",
    "placeholder": '{"instruction": "Name the capital of France.", "output": "Paris."}',
    "elem_id": "m-pairs",
}
_CHOICES = [("at random, by the seed", "random"), ("the first", "first")]
_UNITS = [("FFN neurons", "ffn"), ("Attention projections, by row", "attention")]
_FFNS = [("original", "original"), ("compare with top-k", "topk")]
_TEMPLATES = [
    ("automatic", "auto"), ("plain", "plain"), ("Alpaca", "alpaca"), ("Alpaca, always with an input", "alpaca-input"), ("chat", "chat"),
]  # fmt: skip


def build_fields(examples: list[str]) -> Fields:
    """Build them. examples: labels of the example buttons. Call inside a page."""
    return build_model_fields("Measure", examples, [_text, _gradients, _options])


def _text() -> list[Any]:
    """source, samples, max_length, choice, template, pairs, dataset."""
    info = "Instructions and answers. The loss is taken over the answers' tokens."
    return build_text([("My own pairs", PAIRS)], info, _amounts, (PAIRS, _PAIRS))


def _amounts() -> list[Any]:
    return [
        build_number("Samples", "50", f"From 2 to {limits.CONFLICT_SAMPLES}.", "m-samples"),
        build_number("Longest sample", "512", "In tokens; longer ones are truncated.", "m-length"),
        build_choice(_CHOICES, "Which samples", "Of all rows of the data.", "m-choice", min_width=200),
        gr.Dropdown(
            _TEMPLATES,
            value="auto",
            label="Prompt template",
            info="Automatic: the tokenizer's chat template if it has one.",
            elem_id="m-template",
            min_width=200,
        ),
    ]


def _gradients() -> list[Any]:
    """unit, ffn, topk, topk_layers, topk_share, select."""
    with gr.Row():
        unit = build_choice(_UNITS, "Gradients of", "The units whose gradients are compared between samples.", "m-unit")
        both = "Top-k: each token keeps only its highest-ranked neurons in the chosen layers. Both run on the same samples."
        ffn = build_choice(_FFNS, "FFN", both, "m-ffn")
    with gr.Column(visible=False, elem_classes="m-flush") as topk_fields:
        with gr.Row():
            topk = build_number("k, as a share of the width", "12.5%", "Neurons that each token keeps.", "m-topk", 160)
            layers = build_number("In layers", "last", "last, all, a number, or a range such as 8-15.", "m-layers", 160)
            share = build_number(
                "Or smallest set covering", "90%", "This share of the sum of |score|, instead of k.", "m-share-of-sum", 160
            )
        select = build_choice(_SCORES, "Rank neurons by", "Highest first.", "m-select")
    ffn.change(lambda ffn: gr.update(visible=ffn == "topk"), ffn, topk_fields, queue=False, **QUIET)
    return [unit, ffn, topk, layers, share, select]


def _options() -> list[Any]:
    """loss, gamma, floor, epsilon, dtype, attention, seed, checkpointing, weights."""
    with gr.Row():
        loss = build_choice(["mean", "sum"], "Loss of a sample", "Over its answer's tokens.")
        gamma = build_number("Conflict below", "0", "A pair with a smaller cosine conflicts.", width=140)
        floor = build_number("Smallest gradient norm", "0", "In medians of the norms in its layer.", width=140)
        epsilon = build_number("Gradient norm above", "0", "Absolute; shorter gradients are excluded.", width=140)
    with gr.Row():
        dtype = build_dtype()
        attention = build_attention("Which implementation runs.")
        seed = build_number("Seed", "0", "Of the choice of samples, halves and batches.")
    with gr.Row():
        checkpointing = gr.Checkbox(label="Recompute activations: less memory, more time", info="Automatic where memory is short.")
        weights = gr.Checkbox(value=True, label="Measure individual weights too")
    return [loss, gamma, floor, epsilon, dtype, attention, seed, checkpointing, weights]


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
PAGE = AnalysisPage(
    name="conflict",
    question="Do training samples conflict in the same neuron?",
    about="Name a model: Mantissa runs a few dozen samples forward and backward, and reports how often their gradients of the same neuron "
    "point in opposite directions, in which layers, and whether one sample dominates.",
    examples=EXAMPLES,
    form=Form,
    of_query=form,
    fields=build_fields,
    result=RESULT,
    meter=LayerMeter,
    own="pairs",
    missing="The pairs of this analysis were too long for a link: paste them again, then press Measure.",
)
