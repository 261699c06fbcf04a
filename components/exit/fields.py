"""The fields of the exit page: which model, which signals, on what text, and the options."""

from typing import Any

import gradio as gr

from analyzers import limits
from components.exit.names import METHODS
from components.forms import model_fields
from components.forms.model_fields import Fields, build_number, build_text


def build_fields(examples: list[str]) -> Fields:
    """Lay them out. examples: what their buttons say. Call inside a page."""
    return model_fields.build_fields("Measure", examples, [_signals, _text, _runs], _options)


def _signals() -> list[Any]:
    """methods, rank, k, anchors, seeds."""
    methods = gr.CheckboxGroup(
        list(METHODS),
        value=list(METHODS),
        label="Signals",
        info="Each stands in for the gradient that backpropagation sends into the model; svd and true_rows are ceilings. The methods page "
        "has them all.",
        elem_id="m-methods",
    )
    with gr.Row():
        rank = build_number("Rank", "128, or half the width", "Of random codes and svd.", "m-rank")
        k = build_number("k", "16", "Tokens taken for themselves.", "m-k")
        anchors = build_number("Anchors", "64, or half the width", "Hidden states that span.", "m-anchors")
        seeds = build_number("Seeds", "8", f"Draws of random codes, up to {limits.EXIT_SEEDS}.", "m-seeds")
    return [methods, rank, k, anchors, seeds]


def _text() -> list[Any]:
    """source, samples, sequence_length, dataset."""
    return build_text([], "Instructions and their answers. Gradients are those of the answers' tokens.", _amounts)


def _amounts() -> list[Any]:
    return [
        build_number("Samples", "32", f"From 1 to {limits.EXIT_SAMPLES}, the first ones.", "m-samples"),
        build_number("Longest sample", "256", "In tokens; longer ones are cut off.", "m-length"),
    ]


def _runs() -> list[Any]:
    """training_steps, layers, sweep."""
    with gr.Row():
        steps = build_number("Training steps", "80", "Of a small trunk under each signal; 0 for none.", "m-steps", 200)
        layers = gr.Textbox(label="Layers of the logit lens", placeholder="auto", info="auto, all, final, or 0,4-6.", elem_id="m-layers")
        sweep = gr.Checkbox(value=True, label="Sweep other ranks, ks and anchors", info="Without it faster.", elem_id="m-sweep")
    return [steps, layers, sweep]


def _options() -> list[Any]:
    """tokens, buckets, residual, dtype, seed."""
    with gr.Row():
        tokens = build_number("Measured tokens", "512", "At most so many, drawn evenly from the answers.")
        buckets = build_number("Buckets", "512", "Of the sketch in hybrid.")
        residual = build_number("Residual", "1", "Weight of the random codes in parallel_gold and parallel_topmass.")
    with gr.Row():
        dtype = gr.Radio(
            [("automatic", "auto"), "float32", "bfloat16", "float16"],
            value="auto",
            label="Run the model in",
            info="Automatic: float32 on a CPU, as stored on a GPU.",
        )
        seed = build_number("Seed", "0", "Of codes, anchors, drawn tokens and the trunk.")
    return [tokens, buckets, residual, dtype, seed]
