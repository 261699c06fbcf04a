"""The check page: a model, its base if there is one, and what is wrong with the upload."""

from collections.abc import Sequence

import gradio as gr

from components.check.form import Form, form
from components.check.result import RESULT
from components.forms.fields import Fields, build_busy, build_buttons, build_examples
from components.forms.picker import build_picker, wire_search
from components.running.analysis_page import AnalysisPage

# Label of each example button, and its form.
EXAMPLES = {
    "tiny-bf16-as-fp32": Form(model="sample:tiny-bf16-as-fp32"),
    "tiny-tuned, of tiny-bf16": Form(model="sample:tiny-tuned", base="sample:tiny-bf16"),
    "google-t5/t5-small": Form(model="google-t5/t5-small"),
}


def build_fields(examples: Sequence[str]) -> Fields:
    """Lay out the pickers with the buttons, and the examples. Call inside a page."""
    with gr.Row(elem_classes="m-ask"):
        model = build_picker("Model: org/name or org/name@revision, or a sample", "m-model")
        go, stop = build_buttons("Check")
    build_busy()
    chips = build_examples(examples)
    with gr.Column(elem_classes="m-options m-fields"), gr.Row():
        base = build_picker("The checkpoint it was trained from, if there is one", "m-base")
    wire_search([model, base])
    return Fields([model, base], go, stop, chips, [model, base], subject=2)


PAGE = AnalysisPage(
    name="check",
    question="Check an upload: is it what it claims to be, and what does it waste?",
    about="Mantissa reads every byte and reports what others would stumble over: weights that are not finite, fp32 files with bf16 "
    "values, weights stored twice, norms that were never trained and, compared with its base, what is missing or unchanged.",
    examples=EXAMPLES,
    form=Form,
    of_query=form,
    fields=build_fields,
    result=RESULT,
)
