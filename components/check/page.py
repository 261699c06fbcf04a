"""Defines the check page: a model, its base if there is one, and what is wrong with the upload."""

from collections.abc import Sequence

import gradio as gr

from analyzers.check.report import CheckRequest
from components.check.result import RESULT
from components.forms.checkpoint_picker import build_picker, wire_search
from components.forms.fields import Fields, build_busy, build_buttons, build_examples, build_rest
from components.running.analysis_page import AnalysisPage

# Label of each example button -> the values that it fills in.
EXAMPLES = {
    "tiny-bf16-as-fp32": {"model": "sample:tiny-bf16-as-fp32"},
    "tiny-tuned, of tiny-bf16": {"model": "sample:tiny-tuned", "base": "sample:tiny-bf16"},
    "google-t5/t5-small": {"model": "google-t5/t5-small"},
}


def build_fields(examples: Sequence[str]) -> Fields:
    """Lay out the pickers with the buttons, and the examples. Call inside a page."""
    with gr.Row(elem_classes="m-ask"):
        model = build_picker("Model: org/name or org/name@revision, or a sample", "m-model")
        go, stop = build_buttons("Check")
    build_busy()
    chips = build_examples(examples)
    with gr.Column(elem_classes="m-options m-fields"):
        with gr.Row():
            base = build_picker("The checkpoint it was trained from, if there is one", "m-base")
        widgets = {"model": model, "base": base}
        widgets |= build_rest(CheckRequest, widgets)
    wire_search([model, base])
    return Fields(widgets, go, stop, chips)


PAGE = AnalysisPage(
    name="check",
    question="Will this upload load, and is it what it claims?",
    about="Enter a model: Mantissa reads every byte and reports what its users would stumble over: files that do not load, weights that "
    "are not finite, fp32 files with bf16 values, weights stored twice, norms never trained and, compared with the base, what is missing "
    "or unchanged.",
    examples=EXAMPLES,
    fields=build_fields,
    result=RESULT,
)
