"""Defines the parents page: a model and its candidates, and which of them its weights come from."""

from collections.abc import Sequence
from functools import partial

import gradio as gr

from analyzers.parents.report import ParentsRequest
from components.examples.finished import finished_example
from components.forms.checkpoint_picker import build_picker, wire_search
from components.forms.fields import READING, Fields, build_busy, build_buttons, build_examples, build_options, build_rest, build_rows
from components.parents.result import RESULT
from components.parents.suggestions import build_suggestions, complete
from components.running.analysis_page import AnalysisPage

# Label of each example button -> the values that it fills in.
EXAMPLES = {
    "tiny-tuned, of 3 candidates": {"model": "sample:tiny-tuned", "candidates": "sample:tiny-bf16 sample:tiny-fp32 sample:tiny-fp16-mixed"},
    "tiny-bf16-as-fp32": {"model": "sample:tiny-bf16-as-fp32", "candidates": "sample:tiny-bf16 sample:tiny-fp32"},
    "DeepScaleR-1.5B, by its card": {"model": "agentica-org/DeepScaleR-1.5B-Preview"},
}


def build_fields(examples: Sequence[str]) -> Fields:
    """Lay out the pickers with the buttons, the examples and the options. Call inside a page."""
    with gr.Row(elem_classes="m-ask"):
        model = build_picker("Model: org/name or org/name@revision, or a sample", "m-model")
    with gr.Row(elem_classes="m-ask"):
        candidates = build_picker("Candidates, separated by spaces; if empty, from its card and the library", "m-candidates")
        go, stop = build_buttons("Compare")
    build_suggestions(model, candidates)
    build_busy()
    wire_search([model, candidates])
    chips = build_examples(examples)
    with build_options():
        widgets = {"model": model, "candidates": candidates} | build_rows(ParentsRequest, *READING)
        widgets |= build_rest(ParentsRequest, widgets)
    return Fields(widgets, go, stop, chips)


PAGE = AnalysisPage(
    name="parents",
    question="Which models do these weights come from?",
    about="Enter a model and those it may come from: Mantissa reads the same sample of each (64 MB, a few seconds, whatever their size), "
    "fits the model as a combination of them, and says what is proven by equal bits and what is inferred.",
    examples=EXAMPLES,
    fields=build_fields,
    result=RESULT,
    below=partial(finished_example, "parents"),
    complete=complete,
)
