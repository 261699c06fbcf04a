"""The page of the toy analyzer."""

from functools import partial

from components.forms.fields import build_model_fields, build_reading
from components.running.analysis_page import AnalysisPage
from tests.toy.form import Form, form
from tests.toy.result import RESULT

PAGE = AnalysisPage(
    name="toy",
    question="How many tensors?",
    about="Name a model.",
    examples={"tiny-bf16": Form("sample:tiny-bf16")},
    form=Form,
    of_query=form,
    fields=partial(build_model_fields, "Count", blocks=[build_reading]),
    result=RESULT,
)
