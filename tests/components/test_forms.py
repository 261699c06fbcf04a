"""Forms, addresses and commands of the fields of a request: each leads back to the same request."""

import asyncio
import re
import shlex
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl

import gradio as gr
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzers import ANALYZERS, Analyzer, with_pages
from analyzers.__main__ import build_parser
from analyzers.core import command_line
from analyzers.core.errors import MantissaError
from analyzers.core.options import choices, is_list, is_subject, offered, option_of
from components.api import validated
from components.fields import Form, build_form, filled, request_of
from components.result.links import command, query

_MODELS = ("sample:tiny-bf16", "org/name@main", "org/base+org/adapter", "name")


def _requests(name: str) -> st.SearchStrategy[Any]:
    """Requests of an analyzer, with some options that are not at their default."""
    kind = ANALYZERS[name].request_model()
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for field in offered(kind, "site"):
        info, values = kind.model_fields[field], choices(kind, field)
        if info.is_required() or option_of(kind, field).one:
            one = st.sampled_from(_MODELS)
            fields[field] = st.lists(one, min_size=2, max_size=3, unique=True).map(tuple) if is_list(kind, field) else one
        elif isinstance(info.default, bool):
            fields[field] = st.booleans()
        elif values and not is_list(kind, field):
            fields[field] = st.sampled_from(values)
        elif field in ("include", "exclude"):
            fields[field] = st.sampled_from((None, "mlp", "a,b", "--x=1 &?#"))
        elif field == "seed":
            fields[field] = st.integers(0, 2**40)

    def made(given: dict[str, Any]) -> Any:
        try:
            return kind(**given)
        except ValueError:  # options that exclude each other
            return None

    return st.fixed_dictionaries(fields).map(made).filter(lambda request: request is not None)


@pytest.mark.parametrize("name", ANALYZERS)
@given(data=st.data())
def test_an_address_leads_back_to_its_request(name: str, data: Any) -> None:
    request = data.draw(_requests(name))
    typed, said = filled(type(request), parse_qsl(query(request)[1:], keep_blank_values=True))
    assert said == "" and request_of(type(request), typed) == request


@pytest.mark.parametrize("name", ANALYZERS)
@given(data=st.data())
def test_a_command_makes_the_same_request(name: str, data: Any) -> None:
    request = data.draw(_requests(name))
    words = shlex.split(command(request))
    assert words[:2] == ["mantissa", name]
    options, kind = build_parser([name]).parse_args(words[1:]), type(request)
    subjects = {field: getattr(request, field) for field in kind.model_fields if is_subject(kind, field)}
    assert command_line.request_of(kind, options, **subjects) == request


@pytest.mark.parametrize("name", ANALYZERS)
@given(
    pairs=st.lists(st.tuples(st.one_of(st.text(max_size=12), st.sampled_from(("model", "mode", "seed", "variants"))), st.text(max_size=40)))
)
def test_a_hostile_address_fills_in_or_is_refused_in_a_sentence(name: str, pairs: list[tuple[str, str]]) -> None:
    kind = ANALYZERS[name].request_model()
    typed, _ = filled(kind, pairs)
    with suppress(MantissaError):
        request_of(kind, typed)


def test_what_is_wrong_is_said() -> None:
    kind = ANALYZERS["dtype"].request_model()
    assert filled(kind, [("model", "a/b"), ("budgt", "1")])[1] == "Unknown in the address: budgt (did you mean budget?)."
    assert "must be one of quick, exact" in filled(kind, [("mode", "fast")])[1]
    assert filled(ANALYZERS["precision"].request_model(), [("logprobs", "")])[1].endswith("too long for a link: paste it again.")
    assert filled(kind, [("model", "org/name"), ("revision", "v1")])[0] == {"model": "org/name@v1"}
    assert request_of(kind, {"model": "a/b", "mode": "exact", "budget": "5MB"}).mode == "exact", "which has no budget"
    for typed, said in (
        ({}, "Type or paste"),
        ({"model": "a/b c/d"}, "One model at a time"),
        ({"model": "a/b", "seed": "x"}, "whole number"),
    ):
        with pytest.raises(MantissaError, match=said):
            request_of(kind, typed)


@pytest.mark.parametrize("analyzer", with_pages(), ids=lambda analyzer: analyzer.name)
def test_an_example_fills_in_the_form_of_its_request(analyzer: Analyzer) -> None:
    question, kind = analyzer.component("layout").QUESTION, analyzer.request_model()

    async def built() -> Form:  # Gradio leaves a loop open where none runs
        with gr.Blocks():
            return build_form(kind, question.front, list)[0]

    form = asyncio.run(built())
    for example in question.examples.values():
        values = form.values(example).items()
        assert form.read([widget.preprocess(widget.postprocess(value)) for widget, value in values]) == kind(**example)


def test_a_refused_value_is_said_in_the_terms_of_page_command_and_program() -> None:
    kind = ANALYZERS["exit"].request_model()
    options = build_parser(["exit"]).parse_args(["exit", "a/b", "--rank-exact", "0"])
    for refused, said in (
        (lambda: request_of(kind, {"model": "a/b", "rank_exact": "0"}), '"Exact rank" must be at least 1, not 0.'),
        (lambda: command_line.request_of(kind, options), "--rank-exact must be at least 1, not 0."),
        (lambda: validated(kind, {"model": "a/b", "rank_exact": 0}), "rank_exact must be at least 1, not 0."),
        (lambda: build_parser(["exit"]).parse_args(["exit", "a/b", "--rank", "x"]), "--rank must be a whole number, not 'x'."),
    ):
        with pytest.raises(MantissaError) as caught:
            refused()
        assert str(caught.value) == said


@pytest.mark.parametrize("nonsense", ["x", "-1", "1e400", "9" * 30, ","])
def test_nonsense_in_a_field_is_never_answered_in_the_words_of_a_library(nonsense: str) -> None:
    said = []
    for analyzer in ANALYZERS.values():
        kind = analyzer.request_model()
        subjects = {field: "a/b" for field in offered(kind, "site") if is_subject(kind, field)}
        for field in offered(kind, "site"):
            try:
                request_of(kind, subjects | {field: nonsense})
            except MantissaError as error:
                said.append(str(error))
    assert len(said) > 10 and not re.search("input should|not valid|permitted", " ".join(said), re.IGNORECASE)
