"""Forms, query strings, permalinks and command lines: the state of the page as text."""

import asyncio
import shlex
from typing import Any
from urllib.parse import parse_qsl

import gradio as gr
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzers import ANALYZERS, with_pages
from analyzers.core import limits
from analyzers.core.errors import InvalidRequest
from analyzers.core.options import offered
from analyzers.dtype_detection import DtypeRequest
from components.dtype.form import filled, permalink, request
from components.forms.form import as_read, command, revised
from components.site import addresses
from tests.components.dtype_reports import HOSTILE, report


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("", limits.DEFAULT_BUDGET_BYTES),
        ("64MB", 64_000_000),
        ("1.5 GB", 1_500_000_000),
        ("2,000,000", 2_000_000),
        ("8MiB", 8 << 20),
        ("100 kB", 100_000),
    ],
)
def test_budget(text: str, budget: int) -> None:
    assert request({"model": "a/b", "budget": text}).budget == budget


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "   "},
        {"mode": "evil"},
        {"budget": "-1"},
        {"budget": "inf"},
        {"budget": "1e999MB"},
        {"budget": "9" * 5000},
        {"seed": "1.5"},
        {"seed": "9" * 5000},
        {"include": "x" * 5000},
    ],
)
def test_bad_fields_are_one_sentence(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        request({"model": "a/b"} | fields)
    message = str(caught.value)
    assert message.endswith(".") and "\n" not in message and len(message) < 400


@given(
    st.dictionaries(st.sampled_from(["model", "mode", "revision", "budget", "seed", "include", "theme", "__theme"]), st.text(max_size=3000))
)
def test_any_query_is_a_form_and_then_a_request_or_one_error(query: dict[str, str]) -> None:
    try:
        answer: DtypeRequest | str = request(filled(list(query.items())))
    except InvalidRequest as error:
        answer = str(error)
    assert isinstance(answer, DtypeRequest) or "\n" not in answer


def test_a_permalink_leads_back_to_the_same_request() -> None:
    asked = DtypeRequest(model="org/name", budget=5_000_000, include="mlp|attn&x=1", exclude="#", subfolder="a b", seed=7)
    made = report("org/name", request=asked.model_dump())
    found = request(filled(parse_qsl(permalink(as_read(made)).removeprefix("?"))))
    assert found == asked.model_copy(update={"model": f"org/name@{made.checkpoint.commit}"})


def test_a_sample_is_linked_by_its_name() -> None:
    assert permalink(as_read(report())) == "?model=sample%3Atiny-bf16-as-fp32&mode=quick"
    assert command(as_read(report())) == "mantissa dtype sample:tiny-bf16-as-fp32"


def test_a_hostile_name_stays_one_word_of_the_command() -> None:
    asked = DtypeRequest(model=HOSTILE, include="-rf; rm $(x)")
    line = command(as_read(report(HOSTILE, request=asked.model_dump())))
    assert shlex.split(line)[2:] == [f"{HOSTILE}@{report().checkpoint.commit}", "--include=-rf; rm $(x)"]


def test_a_revision_becomes_part_of_its_model() -> None:
    assert revised([("model", "a/b"), ("revision", "main"), ("seed", "1")]) == [("model", "a/b@main"), ("seed", "1")]
    for query in (
        [("model", "a/b")],
        [("model", "a/b@x"), ("revision", "y")],
        [("revision", "y")],
        [("model", "a"), ("model", "b"), ("revision", "y")],
    ):
        assert revised(query) == query


@pytest.mark.parametrize(
    ("analyzer", "query"),
    [
        ("dtype", "model=org%2Fname&mode=exact&include=mlp"),
        ("dtype", f"model=org%2Fname&revision={'a' * 40}&mode=quick"),
        ("sparsity", "base=org%2Fbase&tuned=org%2Fone&tuned=org%2Ftwo&mode=quick&seed=3"),
        ("conflict", "model=org%2Fname&data=org%2Fdata&samples=8"),
        ("precision", "model=org%2Fname&variants=bf16%2Cfp16&data=random&sequences=3"),
        ("parents", "model=org%2Fname&candidate=org%2Fa&candidate=org%2Fb&mode=exact"),
        ("parents", "model=org%2Fname&mode=quick"),
        ("compare", "model=org%2Fbase&model=org%2Fone&model=org%2Ftwo&mode=exact&eta=0.01&spectral=1"),
        ("check", "model=org%2Fname&base=org%2Fbase"),
        ("check", f"model=org%2Fname%40{'a' * 40}"),
        ("exit", "model=sample%3Atiny-bf16&methods=parallel%2Cspan&data=org%2Fdata&samples=4"),
    ],
)
def test_the_address_of_a_run_that_has_begun_asks_for_the_same(analyzer: str, query: str) -> None:
    form = ANALYZERS[analyzer].component("form")
    asked = form.request(form.filled(parse_qsl(query)))
    address = addresses.as_requested(asked)
    assert address.split("?")[0] == ANALYZERS[analyzer].address and "%40&" not in address and "revision=&" not in address
    assert form.request(form.filled(parse_qsl(address.split("?")[1]))) == asked


@pytest.mark.parametrize("name", [each.name for each in with_pages()])
def test_a_page_opens_with_every_option_at_its_default(name: str) -> None:
    analyzer = ANALYZERS[name]
    kind, page = analyzer.request_model(), analyzer.component("page").PAGE

    async def build() -> Any:  # while an event loop runs: elsewhere Gradio leaves one open
        with gr.Blocks():
            return page.fields(list(page.examples))

    fields = asyncio.run(build())
    subjects: dict[str, Any] = {"models": ["a/b", "c/d"]} if name == "compare" else {"model": "a/b"}
    opened = fields.read({widget: widget.value for widget in fields.widgets.values()})
    assert page.form.request(opened | subjects) == page.form.request(subjects) == kind(**subjects)
    assert set(offered(kind, "site")) - {"models"} <= fields.widgets.keys()
    for asked in page.examples.values():
        assert fields.fill(asked).keys() <= set(fields.outputs()) and asked.keys() - {"models"} <= fields.widgets.keys()
