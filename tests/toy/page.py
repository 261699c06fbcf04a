"""Defines the page of the toy analyzer."""

from functools import partial

from components.forms.fields import build_model_fields
from components.running.analysis_page import AnalysisPage
from tests.toy import ToyRequest
from tests.toy.result import RESULT

PAGE = AnalysisPage(
    name="toy",
    question="How many tensors?",
    about="Name a model.",
    examples={"tiny-bf16": {"model": "sample:tiny-bf16"}},
    fields=partial(build_model_fields, ToyRequest, "Count"),
    result=RESULT,
)
