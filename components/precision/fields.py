"""The fields of the precision page: which model, run in which ways, on what, and the options."""

from typing import Any

import gradio as gr

from analyzers import limits
from components.forms import model_fields
from components.forms.model_fields import Fields, build_attention, build_number, build_text
from components.precision.form import PRETRAINED, RANDOM, TEXT
from components.precision.names import DEFAULT, PRESETS


def build_fields(examples: list[str]) -> Fields:
    """Lay them out. examples: what their buttons say. Call inside a page."""
    return model_fields.build_fields("Run", examples, [_ways, _text, _runs], _options)


def _ways() -> list[Any]:
    """presets, own."""
    presets = gr.CheckboxGroup(
        list(PRESETS),
        value=list(DEFAULT),
        label="Variants",
        info="Each is run forward and backward beside fp32. The name says what differs; the methods page has them all.",
        elem_id="m-variants",
    )
    own = gr.Textbox(
        label="Variants of your own",
        info=(
            "A line each, name: key=value,... with the keys dtype (bf16, fp16, tf32, fp32), fp32 (parts joined by +: residual, lm_head, "
            "norms, router, softmax), autocast, attention, reductions, weights (int8, fp8, mxfp4)."
        ),
        placeholder="mine: dtype=bf16, fp32=residual+norms",
        lines=2,
        max_lines=8,
        elem_id="m-own",
    )
    return [presets, own]


def _text() -> list[Any]:
    """source, sequences, sequence_length, text, dataset."""
    info = "Cut into sequences of one length; every token but the first of each is predicted."
    return build_text([("My own text", TEXT), ("Random tokens", RANDOM)], info, _amounts, (TEXT, _own_text))


def _amounts() -> list[Any]:
    return [
        build_number("Sequences", "2", f"From 1 to {limits.PRECISION_SEQUENCES}.", "m-sequences"),
        build_number("Tokens of each", "512", f"From 2 to {limits.PRECISION_TOKENS:,}.", "m-length"),
    ]


def _own_text() -> gr.Textbox:
    return gr.Textbox(label="Your text", lines=6, max_lines=16, visible=False, elem_id="m-text")


def _runs() -> list[Any]:
    """loss, weights."""
    with gr.Row():
        loss = gr.Radio(
            [("Cross-entropy", "ce"), ("Policy gradient (GSPO)", "gspo")],
            value="ce",
            label="Loss",
            info="Its gradients run back through the model.",
            elem_id="m-loss",
        )
        weights = gr.Radio(
            [("As trained", PRETRAINED), ("Random", RANDOM)],
            value=PRETRAINED,
            label="Weights",
            info="Random: fresh ones, as the architecture draws them before training.",
            elem_id="m-weights",
        )
    return [loss, weights]


def _options() -> list[Any]:
    """pre_rounded, inside, attention, advantages, seed."""
    with gr.Row():
        pre_rounded = gr.Checkbox(
            label="Round the weights of the reference too",
            info="As each variant's are: what is left is the rounding of computation.",
            elem_id="m-pre-rounded",
        )
        inside = gr.Checkbox(label="Look inside the layers", info="Also compare what each module within a layer gives.", elem_id="m-inside")
    with gr.Row():
        attention = build_attention("Of the reference, and of variants that say nothing else.")
        advantages = build_number("Advantages", "1, -0.5", "For GSPO, one a sequence; drawn at random if empty.", width=200)
        seed = build_number("Seed", "0", "Of what is random.")
    return [pre_rounded, inside, attention, advantages, seed]
