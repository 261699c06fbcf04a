"""The fields of the conflict page: which model, on what text, which gradients, and the options."""

from typing import Any

import gradio as gr

from analyzers import limits
from components.conflict.form import PAIRS
from components.forms import model_fields
from components.forms.model_fields import Fields, build_attention, build_number, build_text
from components.running.wiring import QUIET

_SCORES = [("gate", "gate"), ("up", "up"), ("|up|", "abs-up"), ("gate x up", "product"), ("|gate x up|", "abs-product")]


def build_fields(examples: list[str]) -> Fields:
    """Lay them out. examples: what their buttons say. Call inside a page."""
    return model_fields.build_fields("Measure", examples, [_text, _gradients], _options)


def _text() -> list[Any]:
    """source, samples, max_length, pairs, dataset."""
    info = "Instructions and their answers. The gradients are those of the answers' tokens."
    return build_text([("My own pairs", PAIRS)], info, _amounts, (PAIRS, _pairs))


def _amounts() -> list[Any]:
    return [
        build_number("Samples", "50", f"From 2 to {limits.CONFLICT_SAMPLES}, the first ones.", "m-samples"),
        build_number("Longest sample", "512", "In tokens; longer ones are cut off.", "m-length"),
    ]


def _pairs() -> gr.Textbox:
    return gr.Textbox(
        label="Pairs",
        info="A line each: a JSON object with instruction and output (and perhaps input), or both with a tab between them.",
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
            info="What two samples may pull in opposite directions.",
            elem_id="m-unit",
        )
        ffn = gr.Radio(
            [("as it is", "original"), ("top-k beside it", "topk")],
            value="original",
            label="FFN",
            info="Top-k: each token keeps only its first neurons, in the layers chosen; measured on the same samples.",
            elem_id="m-ffn",
        )
    with gr.Column(visible=False, elem_classes="m-flush") as topk_fields:
        with gr.Row():
            topk = gr.Textbox(
                label="k, as a share of the width", placeholder="12.5 %", info="Of its neurons a token keeps.", elem_id="m-topk"
            )
            layers = gr.Textbox(
                label="In layers", placeholder="last", info="last, all, a number, or a range such as 8-15.", elem_id="m-layers"
            )
            share = gr.Textbox(
                label="Or as few as hold",
                info="This share of the sum of |score|, in place of k.",
                placeholder="90 %",
                elem_id="m-share-of-sum",
            )
        select = gr.Radio(_SCORES, value="gate", label="The first by", info="The score of a neuron, largest first.", elem_id="m-select")
    ffn.change(lambda ffn: gr.update(visible=ffn == "topk"), ffn, topk_fields, queue=False, **QUIET)
    return [unit, ffn, topk, layers, share, select]


def _options() -> list[Any]:
    """loss, gamma, floor, epsilon, dtype, attention, seed, checkpointing, weights."""
    with gr.Row():
        loss = gr.Radio(["mean", "sum"], value="mean", label="Loss of a sample", info="Over the tokens of its answer.")
        gamma = build_number("Conflict below", "0", "A pair conflicts where its cosine is smaller.", width=140)
        floor = build_number("Smallest gradient that counts", "0", "In medians of the norms in its layer.", width=140)
        epsilon = build_number("Norm to exceed", "0", "Gradients of at most this norm do not count.", width=140)
    with gr.Row():
        dtype = gr.Radio(
            [("automatic", "auto"), "float32", "bfloat16", "float16"],
            value="auto",
            label="Run the model in",
            info="Automatic: float32 on a CPU, as stored on a GPU.",
        )
        attention = build_attention("Which implementation runs.")
        seed = build_number("Seed", "0", "Of halves and batches.")
    with gr.Row():
        checkpointing = gr.Checkbox(label="Recompute activations: less memory, more time", info="Done unasked where memory is short.")
        weights = gr.Checkbox(value=True, label="Look at each single weight too")
    return [loss, gamma, floor, epsilon, dtype, attention, seed, checkpointing, weights]
