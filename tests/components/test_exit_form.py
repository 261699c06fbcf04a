"""The exit page's form, link and command: the state of the page as text; and the same as arguments of the endpoint."""

from inspect import signature
from typing import Any

import gradio as gr
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzers import ANALYZERS
from analyzers.checkpoints import Access
from analyzers.core import limits
from analyzers.core.errors import InvalidReference, LimitExceeded, MantissaError
from analyzers.exit_feedback import ExitReport, ExitRequest
from analyzers.exit_feedback.command import add_options
from analyzers.exit_feedback.signals import EXACT, METHODS, NULL
from components.api.endpoints import endpoint
from components.exit import form, text
from components.exit.form import COST, request
from components.exit.page import EXAMPLES, PAGE
from components.forms.form import DATASET, as_read, command, permalink
from components.running import jobs, zero_gpu
from components.running.jobs import job
from tests.components.dtype_reports import COMMIT, of_model
from tests.components.exit_reports import at_a_glance
from tests.components.model_forms import asks_or_explains, parsed, query_of, skips_all_but_the_model

ENDPOINT = endpoint(ANALYZERS["exit"])
MODEL = "sample:tiny-bf16"


def _asked(found: ExitReport, **changes: Any) -> ExitReport:
    """``found`` as if something else had been asked for."""
    asked = ExitRequest.model_validate({"model": found.request.model} | changes)
    inputs = found.inputs.model_copy(update={"source": asked.data.partition("@")[0], "commit": COMMIT})
    return found.model_copy(update={"request": asked, "inputs": inputs})


def test_every_signal_has_a_style_of_its_own() -> None:
    numbered = text.styles([*METHODS, EXACT, NULL])
    assert len({*numbered}) == len(numbered)


def test_an_empty_form_asks_for_the_defaults() -> None:
    assert request({"model": MODEL}) == ExitRequest(model=MODEL)


def test_every_field_reaches_the_request() -> None:
    asked = {
        "model": " org/name@main ", "methods": ["span", "svd"], "rank": "8", "k": " 4 ", "anchors": "16", "seeds": "2", "data": DATASET,
        "samples": "3", "sequence_length": "64", "dataset": "org/data", "layers": "0-1", "sweep": False, "tokens": "40", "rank_exact": "6",
        "rank_tail": "2", "topk_by": "magnitude", "alpha": "2.5", "residual": "50%", "mass_threshold": "90%", "dtype": "float32",
        "seed": "7",
    }  # fmt: skip
    assert request(asked) == ExitRequest(
        model="org/name@main", methods=("span", "svd"), rank=8, k=4, anchors=16, seeds=2, data="org/data", samples=3, sequence_length=64,
        layers="0-1", sweep=False, tokens=40, rank_exact=6, rank_tail=2, topk_by="magnitude", alpha=2.5, residual=0.5,
        mass_threshold=0.9, dtype="float32", seed=7,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model": " "}, "Type or paste a model id"),
        ({"model": "a/b, c/d"}, "one model at a time: name one"),
        ({"methods": ()}, "name at least one of dense"),
        ({"methods": ("spam",)}, "'spam' is not a signal: choose among dense, "),
        ({"methods": ("span", "span")}, "span is named twice"),
        ({"rank": "0"}, "from 1 to 65,536"),
        ({"k": "many"}, "K must be a whole number, not 'many'"),
        ({"anchors": "0"}, "Anchors must be from 1 to"),
        ({"seeds": "1000"}, "from 1 to 64"),
        ({"layers": "first"}, "auto, all, final"),
        ({"layers": "4-2"}, "ends before it begins"),
        ({"samples": "1e3"}, "Samples must be a whole number"),
        ({"residual": "-1"}, "greater than or equal to 0|at least 0"),
        ({"residual": "nan"}, "esidual"),
        ({"alpha": "0"}, "lpha"),
        ({"mass_threshold": "2"}, "ass threshold must be at most 1"),
        ({"rank_tail": "4"}, "Hybrid needs rank exact with rank tail"),
        ({"methods": ("hybrid",), "rank": "8", "rank_exact": "9"}, "rank exact must be less than its rank, 8, not 9"),
        ({"data": DATASET}, "id of a dataset"),
        ({"dtype": "int8"}, "float16"),
        ({"seed": "-1"}, "at least 0"),
    ],
)
def test_bad_fields_are_one_sentence(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(MantissaError, match=said) as caught:
        request({"model": MODEL} | fields)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 700


_KEYS = ("model", "methods", "rank", "data", "layers", "residual", "sweep", "tokens", "theme")


@given(st.lists(st.tuples(st.sampled_from(_KEYS), st.text(max_size=900))))
def test_any_query_is_a_form_and_then_a_request_or_one_error(query: list[tuple[str, str]]) -> None:
    assert asks_or_explains(form, query, ExitRequest)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"methods": ("parallel", "span"), "rank": 3, "k": 2, "anchors": 5, "rank_exact": 2, "seeds": 1},
        {"data": f"org/data@{COMMIT}", "samples": 2, "sequence_length": 99, "tokens": 12, "dtype": "bfloat16"},
        {"sweep": False, "layers": "0,2-3", "residual": 0.25, "alpha": 2.0, "mass_threshold": 0.5, "topk_by": "magnitude", "seed": 11},
        {"rank_exact": 4, "rank_tail": 9},
    ],
)
def test_a_permalink_and_a_command_lead_back_to_the_same_request(changes: dict[str, Any]) -> None:
    found = _asked(of_model("org/name", at_a_glance()), **changes)
    pinned = found.request.model_copy(update={"model": f"org/name@{COMMIT}"})
    assert request(form.filled(query_of(permalink(as_read(found))))) == pinned
    words = parsed(command(as_read(found)), "exit", add_options)
    options = {name: value for name, value in words.items() if name in ExitRequest.model_fields}
    if "methods" in options:
        options["methods"] = tuple(options["methods"].split(","))
    assert ExitRequest(**options) == pinned


def test_the_default_link_is_short() -> None:
    found = _asked(at_a_glance())
    assert permalink(as_read(found)) == "?model=sample%3Atiny-bf16"
    assert command(as_read(found)) == "mantissa exit sample:tiny-bf16"


def test_an_address_fills_the_fields_or_says_why_not() -> None:
    refused = PAGE.prefill([("model", MODEL), ("methods", "span,spam")])
    assert skips_all_but_the_model(refused, MODEL, "parallel_topmass")
    with pytest.raises(MantissaError, match="'' is not a signal"):
        request(form.filled([("model", MODEL), ("methods", "dense,,span")]))
    assert PAGE.prefill([("rank", "5"), ("", "")])[1:] == (None, ())
    filled = PAGE.prefill([("model", MODEL), ("methods", " span , svd"), ("rank", "4"), ("sweep", "0"), ("", "")])
    assert filled == ({"model": MODEL, "methods": ["span", "svd"], "rank": "4", "sweep": False}, "", None)


def test_a_misspelt_key_of_an_address_is_named_and_nothing_starts() -> None:
    _, status, only = PAGE.prefill([("modle", MODEL), ("utm_source", "x")])
    assert only == () and "Unknown in the address: modle (did you mean model?)." in (status or "")
    typed, status, only = PAGE.prefill([("model", MODEL), ("sede", "1"), ("rnak", "4"), ("embed", "1")])
    assert (typed, only) == ({"model": MODEL}, None) and status
    assert "rnak (did you mean rank?), sede (did you mean seed or sweep?). Correct it, or start without it." in status


def test_every_example_is_a_valid_request() -> None:
    for asked in EXAMPLES.values():
        assert isinstance(request(asked), ExitRequest)
    glance = request(next(iter(EXAMPLES.values())))
    assert EXAMPLES["tiny-bf16"] == {"model": MODEL} and glance.tokens < request({"model": MODEL}).tokens


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "model is missing"),
        ({"model": ["a"]}, "Model must be text."),
        ({"model": MODEL, "methods": "span"}, "Methods must be a list"),
        ({"model": MODEL, "methods": [1]}, "Entry 1 of methods must be"),
        ({"model": MODEL, "methods": []}, "name at least one"),
        ({"model": MODEL, "rank": 2.5}, "Rank must be a whole number, not 2.5."),
        ({"model": MODEL, "rank": 65}, "rank may be at most 64, the model's width"),
        ({"model": MODEL, "k": 513}, "k may be at most 512, the model's vocabulary"),
        ({"model": MODEL, "sweep": "no"}, "Sweep must be true or false"),
        ({"model": MODEL, "layers": "9"}, "There is no layer 9"),
        ({"model": "/etc/passwd"}, "command line"),
    ],
)
def test_what_can_be_no_run_is_one_sentence(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(gr.Error, match=said):
        list(ENDPOINT(**arguments))


def test_the_endpoint_and_the_request_have_the_same_defaults() -> None:
    for name, parameter in signature(ENDPOINT).parameters.items():
        if name not in ("model", "methods"):
            assert parameter.default == ExitRequest.model_fields[name].default


def test_the_endpoint_gives_progress_and_then_the_report() -> None:
    asked: dict[str, Any] = {"samples": 2.0, "tokens": 20, "seeds": 2, "sweep": False, "layers": "final"}
    items = list(ENDPOINT(MODEL, ["dense", "parallel"], **asked))
    assert all("done" in item for item in items[:-1])
    found = ExitReport.model_validate(items[-1])
    assert list(found.methods) == ["dense", "parallel"] and found.inputs.samples == 2


def test_a_local_file_is_refused_before_it_is_looked_for() -> None:
    with pytest.raises(InvalidReference, match="command line only"):
        list(job(request({"model": MODEL, "data": DATASET, "dataset": "/etc/shadow.jsonl"})))


def test_more_than_the_page_runs_is_refused_before_the_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = request({"model": MODEL, "samples": "2"})
    monkeypatch.setattr(limits, "WEB_MODEL_WORK", 1_000_000)
    with pytest.raises(LimitExceeded, match=r"MANTISSA_WEB_MODEL_WORK.*fewer seeds"):
        list(job(asked))
    monkeypatch.setattr(limits, "JOB_SECONDS", 0)
    with pytest.raises(LimitExceeded, match="fewer signals, seeds or tokens, no sweep, a smaller model or the command line"):
        list(jobs.job(asked))


def test_a_gpu_is_asked_for_by_signals_and_tokens() -> None:
    one = request({"model": MODEL, "methods": ["span"], "sweep": False})
    every = request({"model": MODEL})
    assert one.samples * one.sequence_length < COST.tokens(one) < COST.tokens(every)
    facts = at_a_glance().checkpoint
    seconds = [zero_gpu.gpu_seconds(facts.parameters, facts.bytes, COST.tokens(each)) for each in (one, every)]
    assert 15 < seconds[0] <= seconds[1] < 120

    def lend(request: Any, seconds: int, access: Access, folder: str) -> Any:
        yield request.device, seconds

    assert list(zero_gpu._with_gpu(every, Access(), lend))[-1] == ("cuda", seconds[1])
