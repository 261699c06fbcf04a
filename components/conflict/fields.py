"""The fields of the conflict page: which model, on what text, which gradients, and the options."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

from analyzers import limits
from components.conflict.form import BUILTIN, DATASET, PAIRS, Form
from components.controls import build_busy, build_buttons, build_examples
from components.options import typed
from components.picker import build_picker, wire_search
from components.wiring import QUIET

_SCORES = [("gate", "gate"), ("up", "up"), ("|up|", "abs-up"), ("gate x up", "product"), ("|gate x up|", "abs-product")]


@dataclass(frozen=True, slots=True)
class Fields:
    """values: the fields in the order of `Form`; chips: the examples."""

    values: list[Any]
    go: gr.Button
    stop: gr.Button
    chips: list[gr.Button]


def form_of(*values: Any) -> Form:
    """The values of the fields as a form."""
    *texts, checkpointing, weights = values
    known: list[Any] = [*map(typed, texts), checkpointing is True, weights is not False]
    return Form(*known)


def build_fields(examples: list[str]) -> Fields:
    """Lay them out. examples: what their buttons say. Call inside a page."""
    with gr.Row(elem_classes="m-ask"):
        model = build_picker("Model: org/name, perhaps @revision, or a sample", "m-model")
        go, stop = build_buttons("Measure")
    build_busy()
    wire_search([model])
    chips = build_examples(examples)
    with gr.Column(elem_classes="m-options m-fields"):
        text = _text()
        gradients = _gradients()
    with gr.Accordion("Options", open=False, elem_classes="m-options", elem_id="m-options"):
        options = _options()
    return Fields([model, *text, *gradients, *options], go, stop, chips)


def _text() -> list[Any]:
    """source, samples, max_length, pairs, dataset."""
    with gr.Row():
        source = gr.Radio(
            [("Built-in text", BUILTIN), ("My own pairs", PAIRS), ("A Hub dataset", DATASET)],
            value=BUILTIN,
            label="Text",
            info="Instructions and their answers. The gradients are those of the answers' tokens.",
            elem_id="m-source",
            scale=2,
        )
        samples = gr.Textbox(
            label="Samples",
            placeholder="50",
            info=f"From 2 to {limits.CONFLICT_SAMPLES}, the first ones.",
            elem_id="m-samples",
            min_width=120,
        )
        length = gr.Textbox(
            label="Longest sample", placeholder="512", info="In tokens; longer ones are cut off.", elem_id="m-length", min_width=120
        )
    pairs = gr.Textbox(
        label="Pairs",
        info="A line each: a JSON object with instruction and output (and perhaps input), or both with a tab between them.",
        placeholder='{"instruction": "Name the capital of France.", "output": "Paris."}',
        lines=6,
        max_lines=16,
        visible=False,
        elem_id="m-pairs",
    )
    dataset = gr.Textbox(
        label="Dataset",
        info="The id of a public dataset with instruction and output, prompt and completion, or messages.",
        placeholder="tatsu-lab/alpaca",
        visible=False,
        elem_id="m-dataset",
    )
    shown = [pairs, dataset]
    source.change(lambda source: [gr.update(visible=source == each) for each in (PAIRS, DATASET)], source, shown, queue=False, **QUIET)
    return [source, samples, length, pairs, dataset]


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
    """loss, gamma, floor, dtype, attention, seed, checkpointing, weights."""
    with gr.Row():
        loss = gr.Radio(["mean", "sum"], value="mean", label="Loss of a sample", info="Over the tokens of its answer.")
        gamma = gr.Textbox(label="Conflict below", placeholder="0", info="A pair conflicts where its cosine is smaller.", min_width=140)
        floor = gr.Textbox(
            label="Smallest gradient that counts", placeholder="0", info="In medians of the norms in its layer.", min_width=140
        )
    with gr.Row():
        dtype = gr.Radio(
            [("automatic", "auto"), "float32", "bfloat16", "float16"],
            value="auto",
            label="Run the model in",
            info="Automatic: float32 on a CPU, as stored on a GPU.",
        )
        attention = gr.Radio(["sdpa", "eager"], value="sdpa", label="Attention", info="Which implementation runs.")
        seed = gr.Textbox(label="Seed", placeholder="0", info="Of halves and batches.", min_width=120)
    with gr.Row():
        checkpointing = gr.Checkbox(label="Recompute activations: less memory, more time")
        weights = gr.Checkbox(value=True, label="Look at each single weight too")
    return [loss, gamma, floor, dtype, attention, seed, checkpointing, weights]
