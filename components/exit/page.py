"""The exit page: how close gradients without backpropagation are to the exact one at the head of a model."""

from typing import Any

import gradio as gr

from analyzers import limits
from analyzers.base import Progress
from analyzers.exit_feedback.columns import cosine
from analyzers.exit_feedback.signals import EXACT, METHODS, NULL, SIGNALS
from components.exit.form import Form, form
from components.exit.result import RESULT
from components.forms.fields import Fields, build_choice, build_dtype, build_model_fields, build_number, build_text, build_tooltips
from components.running.analysis_page import AnalysisPage
from components.running.progress import Meter, listed

_COMPARED = {
    EXACT: "backpropagation",
    NULL: "dense, with codes drawn anew for every batch of tokens",
}


class SignalMeter(Meter):
    """Lists below the bar the latest cosine of each signal."""

    def found(self, progress: Progress) -> str:
        """The lists, in HTML."""
        from analyzers.exit_feedback import ExitProgress

        if not isinstance(progress, ExitProgress):
            return ""
        return listed("Mean cosine with the exact gradient", [(name, cosine(value), None) for name, value in progress.cosines.items()])


def build_fields(examples: list[str]) -> Fields:
    """Lay them out. examples: labels of the example buttons. Call inside a page."""
    return build_model_fields("Measure", examples, [_signals, _text, _runs, _options])


def _signals() -> list[Any]:
    """methods, rank, k, anchors, seeds."""
    methods = gr.CheckboxGroup(
        list(METHODS),
        value=list(METHODS),
        label="Signals",
        info="Each replaces the gradient that backpropagation sends into the model; svd and true_rows are ceilings. "
        "Hover over a name for its meaning.",
        elem_id="m-methods",
    )
    build_tooltips({name: facts.about for name, facts in SIGNALS.items()} | _COMPARED)
    with gr.Row():
        rank = build_number("Rank", "128, or half the width", "Of random codes (parallel_...: 32) and svd.", "m-rank")
        k = build_number("k", "8", "Top-k vocabulary rows.", "m-k")
        anchors = build_number("Anchors", "64, or half the width", "Anchor hidden states.", "m-anchors")
        seeds = build_number("Seeds", "8", f"Draws of random codes, up to {limits.EXIT_SEEDS}.", "m-seeds")
    return [methods, rank, k, anchors, seeds]


def _text() -> list[Any]:
    """source, samples, sequence_length, dataset."""
    return build_text([], "Instructions with answers. Gradients are measured at the answer tokens.", _amounts)


def _amounts() -> list[Any]:
    return [
        build_number("Samples", "32", f"From 1 to {limits.EXIT_SAMPLES}, the first ones.", "m-samples"),
        build_number("Maximum length", "256", "In tokens; longer samples are truncated.", "m-length"),
    ]


def _runs() -> list[Any]:
    """layers, sweep."""
    with gr.Row():
        layers = build_number("Layers of the logit lens", "auto", "auto, all, final, or 0,4-6.", "m-layers", 160)
        sweep = gr.Checkbox(value=True, label="Sweep other ranks, ks and anchors", info="Faster when off.", elem_id="m-sweep")
    return [layers, sweep]


def _options() -> list[Any]:
    """tokens, rank_exact, rank_tail, topk_by, alpha, residual, mass_threshold, dtype, seed."""
    with gr.Row():
        rank_exact = build_number("Exact rank", "32, or a quarter of the rank", "Columns of hybrid's exact codes.", "m-rank-exact")
        rank_tail = build_number(
            "Tail rank", "the rest of the rank", "Columns of hybrid's tail sketch; needs the exact rank.", "m-rank-tail"
        )
        topk_by = build_choice(["value", "magnitude"], "Top-k by", "Size of the logit gradient, for hybrid.")
    with gr.Row():
        alpha = build_number("Alpha", "1", "Scale of dense and hybrid.", "m-alpha")
        residual = build_number("Lambda", "0.1", "Weight of the codes orthogonal to h in parallel_gold and parallel_topmass.", "m-lambda")
        mass = build_number("Mass threshold", "0.95", "Probability mass of the tokens that parallel_topmass codes.", "m-mass")
    with gr.Row():
        tokens = build_number("Measured tokens", "512", "At most, chosen at random from the answers.")
        dtype = build_dtype()
        seed = build_number("Seed", "0", "Of codes, anchors, and measured tokens.")
    return [tokens, rank_exact, rank_tail, topk_by, alpha, residual, mass, dtype, seed]


# Label of each example button, and its form.
# The first takes some ten seconds.
EXAMPLES = {
    "at a glance": Form(
        "sample:tiny-bf16",
        ("dense", "parallel", "span", "svd"),
        seeds="2",
        samples="8",
        sequence_length="128",
        tokens="128",
        sweep=False,
        layers="final",
    ),
    "tiny-bf16": Form("sample:tiny-bf16"),
    "tiny-bf16, no sweep": Form("sample:tiny-bf16", sweep=False, layers="final"),
    "tiny-fp32, span and ceilings": Form("sample:tiny-fp32", ("parallel", "span", "svd", "true_rows"), anchors="16", rank="16"),
    "SmolLM2-135M": Form("HuggingFaceTB/SmolLM2-135M", seeds="4", samples="16", sequence_length="128", tokens="256"),
}
PAGE = AnalysisPage(
    name="exit",
    question="How good is a gradient without backpropagation?",
    about="Name a model: at its head, Mantissa replaces the gradient that backpropagation would send into the model by cheaper signals, "
    "and reports how close each comes to the exact one, and what it costs.",
    examples=EXAMPLES,
    form=Form,
    of_query=form,
    fields=build_fields,
    result=RESULT,
    meter=SignalMeter,
)
