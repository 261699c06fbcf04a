"""The fields of the precision page: model, variants, text, options."""

from typing import Any

import gradio as gr

from analyzers import limits
from components.forms import model_fields
from components.forms.model_fields import Fields, build_attention, build_number, build_text
from components.precision.form import PRETRAINED, RANDOM, TEXT
from components.precision.names import CLIP, DEFAULT, PRESETS


def build_fields(examples: list[str]) -> Fields:
    """Lay out the fields. examples: labels of their buttons. Call inside a page."""
    return model_fields.build_fields("Run", examples, [_variants, _text, _runs], _options)


def _variants() -> list[Any]:
    """presets, own."""
    presets = gr.CheckboxGroup(
        list(PRESETS),
        value=list(DEFAULT),
        label="Variants",
        info="Each runs forward and backward and is compared with fp32. The methods page describes them.",
        elem_id="m-variants",
    )
    own = gr.Textbox(
        label="Your own variants",
        info=(
            "One per line, name: key=value,... with the keys dtype (bf16, fp16, tf32, fp32), fp32 (parts joined by +: residual, lm_head, "
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
    info = "Cut into sequences of equal length; every token but the first of each is predicted."
    return build_text([("My own text", TEXT), ("Random tokens", RANDOM)], info, _amounts, (TEXT, _own_text))


def _amounts() -> list[Any]:
    return [
        build_number("Sequences", "2", f"From 1 to {limits.PRECISION_SEQUENCES}.", "m-sequences"),
        build_number("Tokens per sequence", "512", f"From 2 to {limits.PRECISION_TOKENS:,}.", "m-length"),
    ]


def _own_text() -> gr.Textbox:
    return gr.Textbox(label="Your text", lines=6, max_lines=16, visible=False, elem_id="m-text")


def _runs() -> list[Any]:
    """loss, weights."""
    with gr.Row():
        loss = gr.Radio(
            [("Cross-entropy", "ce"), ("GSPO", "gspo"), ("GRPO", "grpo")],
            value="ce",
            label="Loss",
            info="Its gradients are compared. GSPO and GRPO are policy gradients.",
            elem_id="m-loss",
        )
        weights = gr.Radio(
            [("As trained", PRETRAINED), ("Random", RANDOM)],
            value=PRETRAINED,
            label="Weights",
            info="Random: as the architecture initializes them.",
            elem_id="m-weights",
        )
    return [loss, weights]


def _options() -> list[Any]:
    """pre_rounded, inside, attention, advantages, old_logprobs, clip_low, clip_high, seed."""
    with gr.Row():
        pre_rounded = gr.Checkbox(
            label="Round the reference's weights too",
            info="Like each variant's, which leaves the error of the computation alone.",
            elem_id="m-pre-rounded",
        )
        inside = gr.Checkbox(
            label="Look inside the layers", info="Also compare the output of each module within a layer.", elem_id="m-inside"
        )
    with gr.Row():
        attention = build_attention("Of the reference, and of variants that do not set it.")
        seed = build_number("Seed", "0", "For random weights, tokens and advantages.")
    with gr.Row():
        advantages = build_number("Advantages", "1, -0.5", "For GSPO and GRPO, one per sequence; random if empty.", width=200)
        low, high = (", ".join(f"{loss.upper()} {bounds[side]:g}" for loss, bounds in CLIP.items()) for side in (0, 1))
        clip_low = build_number("Clip below 1 by", low, "1 clips nothing.", "m-clip-low", width=200)
        clip_high = build_number("Clip above 1 by", high, "1e6 clips nothing.", "m-clip-high", width=200)
    old_logprobs = gr.Textbox(
        label="Old log-probabilities",
        info=(
            "For GSPO and GRPO, under the policy that sampled the tokens: per sequence one line, a JSON list with a number for each token "
            "but the first. If empty, those of the reference."
        ),
        placeholder="[-0.12, -3.4, -0.8]",
        lines=2,
        max_lines=8,
        elem_id="m-old-logprobs",
    )
    return [pre_rounded, inside, attention, advantages, old_logprobs, clip_low, clip_high, seed]
