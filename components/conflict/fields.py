"""The fields of the conflict page: the model, the text, which gradients, and the options."""

from typing import Any

import gradio as gr

from analyzers import limits
from components.conflict.form import PAIRS
from components.forms import model_fields
from components.forms.model_fields import Fields, build_attention, build_number, build_text
from components.running.wiring import QUIET

_SCORES = [("gate", "gate"), ("up", "up"), ("|up|", "abs-up"), ("gate x up", "product"), ("|gate x up|", "abs-product")]
_TEMPLATES = [
    ("automatic", "auto"), ("plain", "plain"), ("Alpaca", "alpaca"), ("Alpaca, always with an input", "alpaca-input"), ("chat", "chat"),
]  # fmt: skip


def build_fields(examples: list[str]) -> Fields:
    """Build them. examples: labels of the example buttons. Call inside a page."""
    return model_fields.build_fields("Measure", examples, [_text, _gradients], _options)


def _text() -> list[Any]:
    """source, samples, max_length, choice, template, pairs, dataset."""
    info = "Instructions and answers. The loss is taken over the answers' tokens."
    return build_text([("My own pairs", PAIRS)], info, _amounts, (PAIRS, _pairs))


def _amounts() -> list[Any]:
    return [
        build_number("Samples", "50", f"From 2 to {limits.CONFLICT_SAMPLES}.", "m-samples"),
        build_number("Longest sample", "512", "In tokens; longer ones are truncated.", "m-length"),
        gr.Radio(
            [("at random, by the seed", "random"), ("the first", "first")],
            value="random",
            label="Which samples",
            info="Of all rows of the data.",
            elem_id="m-choice",
            min_width=200,
        ),
        gr.Dropdown(
            _TEMPLATES,
            value="auto",
            label="Prompt template",
            info="Automatic: the tokenizer's chat template if it has one.",
            elem_id="m-template",
            min_width=200,
        ),
    ]


def _pairs() -> gr.Textbox:
    return gr.Textbox(
        label="Pairs",
        info="One per line: a JSON object with instruction and output (and optionally input), or both separated by a tab.",
        placeholder='{"instruction": "Name the capital of France.", "output": "Paris."}',
        lines=6,
        max_lines=16,
        visible=False,
        elem_id="m-pairs",
    )


def _gradients() -> list[Any]:
    """unit, ffn, topk, topk_layers, topk_share, select."""
    with gr.Row():
        unit = gr.Radio(
            [("FFN neurons", "ffn"), ("Attention projections, by row", "attention")],
            value="ffn",
            label="Gradients of",
            info="The units whose gradients are compared between samples.",
            elem_id="m-unit",
        )
        ffn = gr.Radio(
            [("original", "original"), ("compare with top-k", "topk")],
            value="original",
            label="FFN",
            info="Top-k: each token keeps only its highest-ranked neurons in the chosen layers. Both run on the same samples.",
            elem_id="m-ffn",
        )
    with gr.Column(visible=False, elem_classes="m-flush") as topk_fields:
        with gr.Row():
            topk = gr.Textbox(
                label="k, as a share of the width", placeholder="12.5%", info="Neurons that each token keeps.", elem_id="m-topk"
            )
            layers = gr.Textbox(
                label="In layers", placeholder="last", info="last, all, a number, or a range such as 8-15.", elem_id="m-layers"
            )
            share = gr.Textbox(
                label="Or smallest set covering",
                info="This share of the sum of |score|, instead of k.",
                placeholder="90%",
                elem_id="m-share-of-sum",
            )
        select = gr.Radio(_SCORES, value="gate", label="Rank neurons by", info="Highest first.", elem_id="m-select")
    ffn.change(lambda ffn: gr.update(visible=ffn == "topk"), ffn, topk_fields, queue=False, **QUIET)
    return [unit, ffn, topk, layers, share, select]


def _options() -> list[Any]:
    """loss, gamma, floor, epsilon, dtype, attention, seed, checkpointing, weights."""
    with gr.Row():
        loss = gr.Radio(["mean", "sum"], value="mean", label="Loss of a sample", info="Over its answer's tokens.")
        gamma = build_number("Conflict below", "0", "A pair with a smaller cosine conflicts.", width=140)
        floor = build_number("Smallest gradient norm", "0", "In medians of the norms in its layer.", width=140)
        epsilon = build_number("Norm to exceed", "0", "Gradients of at most this norm do not count.", width=140)
    with gr.Row():
        dtype = gr.Radio(
            [("automatic", "auto"), "float32", "bfloat16", "float16"],
            value="auto",
            label="Run the model in",
            info="Automatic: float32 on a CPU, as stored on a GPU.",
        )
        attention = build_attention("Which implementation runs.")
        seed = build_number("Seed", "0", "Of the choice of samples, halves and batches.")
    with gr.Row():
        checkpointing = gr.Checkbox(label="Recompute activations: less memory, more time", info="Automatic where memory is short.")
        weights = gr.Checkbox(value=True, label="Measure individual weights too")
    return [loss, gamma, floor, epsilon, dtype, attention, seed, checkpointing, weights]
