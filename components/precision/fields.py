"""The fields of the precision page: which model, run in which ways, on what, and the options."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

from analyzers import limits
from components.controls import build_busy, build_buttons, build_examples
from components.options import typed
from components.picker import build_picker, wire_search
from components.precision.form import BUILTIN, DATASET, PRETRAINED, RANDOM, TEXT, Form
from components.precision.names import DEFAULT, PRESETS
from components.wiring import QUIET


@dataclass(frozen=True, slots=True)
class Fields:
    """values: the fields in the order of `Form`; chips: the examples."""

    values: list[Any]
    go: gr.Button
    stop: gr.Button
    chips: list[gr.Button]


def form_of(*values: Any) -> Form:
    """The values of the fields as a form."""
    model, presets, *texts, pre_rounded, inside, attention, advantages, seed = values
    chosen = tuple(map(typed, presets)) if isinstance(presets, list) else ()
    flags = (pre_rounded is True, inside is True)
    known: list[Any] = [typed(model), chosen, *map(typed, texts), *flags, *map(typed, (attention, advantages, seed))]
    return Form(*known)


def build_fields(examples: list[str]) -> Fields:
    """Lay them out. examples: what their buttons say. Call inside a page."""
    with gr.Row(elem_classes="m-ask"):
        model = build_picker("Model: org/name, perhaps @revision, or a sample", "m-model")
        go, stop = build_buttons("Run")
    build_busy()
    wire_search([model])
    chips = build_examples(examples)
    with gr.Column(elem_classes="m-options m-fields"):
        ways = _ways()
        text = _text()
        runs = _runs()
    with gr.Accordion("Options", open=False, elem_classes="m-options", elem_id="m-options"):
        options = _options()
    return Fields([model, *ways, *text, *runs, *options], go, stop, chips)


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
    with gr.Row():
        source = gr.Radio(
            [("Built-in text", BUILTIN), ("My own text", TEXT), ("Random tokens", RANDOM), ("A Hub dataset", DATASET)],
            value=BUILTIN,
            label="Text",
            info="Cut into sequences of one length; every token but the first of each is predicted.",
            elem_id="m-source",
            scale=2,
        )
        sequences = gr.Textbox(
            label="Sequences", placeholder="2", info=f"From 1 to {limits.PRECISION_SEQUENCES}.", elem_id="m-sequences", min_width=120
        )
        length = gr.Textbox(
            label="Tokens of each", placeholder="512", info=f"From 2 to {limits.PRECISION_TOKENS:,}.", elem_id="m-length", min_width=120
        )
    text = gr.Textbox(label="Your text", lines=6, max_lines=16, visible=False, elem_id="m-text")
    dataset = gr.Textbox(
        label="Dataset",
        info="The id of a public dataset with instruction and output, prompt and completion, or messages.",
        placeholder="tatsu-lab/alpaca",
        visible=False,
        elem_id="m-dataset",
    )
    shown = [text, dataset]
    source.change(lambda source: [gr.update(visible=source == each) for each in (TEXT, DATASET)], source, shown, queue=False, **QUIET)
    return [source, sequences, length, text, dataset]


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
        attention = gr.Radio(
            ["sdpa", "eager"], value="sdpa", label="Attention", info="Of the reference, and of variants that say nothing else."
        )
        advantages = gr.Textbox(
            label="Advantages", placeholder="1, -0.5", info="For GSPO, one a sequence; drawn at random if empty.", min_width=200
        )
        seed = gr.Textbox(label="Seed", placeholder="0", info="Of what is random.", min_width=120)
    return [pre_rounded, inside, attention, advantages, seed]
