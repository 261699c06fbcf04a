"""The conflict page's form, link and command: the state of the page as text; and the same as arguments of the endpoint."""

import json
from typing import Any

import gradio as gr
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzers import ANALYZERS
from analyzers.core import limits
from analyzers.core.errors import InvalidRequest, LimitExceeded, MantissaError
from analyzers.gradient_conflict import ConflictReport, ConflictRequest, TextPair
from analyzers.gradient_conflict.command import add_options
from components.api.endpoints import endpoint
from components.conflict import form
from components.conflict.form import PAIRS, command, lines, pasted, permalink, request
from components.conflict.page import PAGE
from components.forms.form import DATASET, LINKED_CHARACTERS, as_read
from components.running.jobs import job
from tests.components.conflict_reports import conflict_report
from tests.components.dtype_reports import COMMIT, of_model
from tests.components.model_forms import asks_or_explains, parsed, query_of, skips_all_but_the_model

MODEL = "sample:tiny-bf16"
TWO = '{"instruction": "Say a.", "output": "a"}\n\n{"prompt": "Say b.", "completion": "b"}\r\nSay c.\tc\nSay\td\tplease'


def _asked(report: ConflictReport, **changes: Any) -> ConflictReport:
    """``report`` as if something else had been asked for."""
    asked = ConflictRequest.model_validate(report.request.model_dump() | changes)
    data = {"source": asked.data, "commit": None if asked.data == "builtin" else COMMIT}
    return report.model_copy(update={"request": asked, "data": report.data.model_copy(update=data)})


def _again(link: str) -> ConflictRequest:
    return request(form.filled(query_of(link)))


def test_every_field_reaches_the_request() -> None:
    asked = {
        "model": " org/name@main ", "data": DATASET, "samples": " 12 ", "max_length": "64", "choice": "first", "template": "alpaca",
        "pairs": "not read", "dataset": "org/data", "unit": "ffn", "ffn": "topk", "topk": "25%", "topk_layers": "1-2", "topk_share": "0.9",
        "select": "abs-product", "loss": "sum", "gamma": "-0.1", "epsilon": "1e-6", "dtype": "bfloat16",
        "attention": "eager", "seed": "7", "checkpointing": True, "weights": False,
    }  # fmt: skip
    assert request(asked) == ConflictRequest(
        model="org/name@main", data="org/data", samples=12, max_length=64, choice="first", template="alpaca", ffn="topk",
        topk=0.25, topk_layers="1-2", topk_share=0.9,
        select="abs-product", loss="sum", gamma=-0.1, epsilon=1e-6, dtype="bfloat16", attention="eager", seed=7,
        checkpointing=True, weights=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "a/b, c/d"},
        {"model": "x" * 100_000},
        {"samples": "9" * 5_000},
        {"gamma": "nan"},
        {"ffn": "topk", "topk_layers": "<b>"},
        {"select": "evil"},
    ],
)
def test_bad_fields_are_one_sentence(fields: dict[str, Any]) -> None:
    with pytest.raises(MantissaError) as caught:
        request({"model": MODEL} | fields)
    assert str(caught.value).endswith(".") and len(str(caught.value)) < 400


def test_pairs_are_read_in_every_form_and_written_as_json() -> None:
    found = pasted("\ufeff" + TWO)
    assert found == (
        {"instruction": "Say a.", "input": "", "output": "a"},
        {"instruction": "Say b.", "input": "", "output": "b"},
        {"instruction": "Say c.", "input": "", "output": "c"},
        {"instruction": "Say", "input": "d", "output": "please"},
    )
    assert pasted(lines(found)) == pasted(json.dumps(list(found), indent=1)) == found
    chat = [{"role": "user", "content": "Say e."}, {"role": "assistant", "content": "e\u2028f"}]
    assert pasted(json.dumps({"messages": chat}, ensure_ascii=False))[0]["output"] == "e\u2028f"
    given = {"model": MODEL, "data": PAIRS, "pairs": TWO}
    assert request(given).pairs[3] == TextPair(instruction="Say", input="d", output="please")
    assert [request({**given, "samples": typed}).samples for typed in ("", "3")] == [4, 3]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Say a.\ta\nSay b.", "^Line 2 of the pairs"),
        ('{"instruction": "a", "output": "b"}\n{"instruction": "a", }', "^Line 2 of the pairs"),
        ("{" * 100_000, "^Line 1 of the pairs"),
        ("[" * 100_000, "^The list of pairs"),
        ("[1, 2]", "^Entry 1 of the pairs"),
        ('{"instruction": "a", "output": " "}', "^Line 1 of the pairs"),
    ],
)
def test_a_bad_pair_is_named(text: str, named: str) -> None:
    with pytest.raises(MantissaError, match=named):
        pasted(text)


def test_too_many_and_too_long_pairs_are_refused() -> None:
    with pytest.raises(LimitExceeded, match="There are more than 256 pairs"):
        pasted("a\tb\n" * (limits.CONFLICT_SAMPLES + 1))
    with pytest.raises(LimitExceeded, match=r"^Line 1 .*100,000"):
        pasted("a\t" + "b" * (limits.PAIR_CHARACTERS + 1))


_KEYS = ("model", "data", "pairs", "samples", "topk", "gamma", "weights", "ffn", "source", "dataset", "theme")


@given(st.lists(st.tuples(st.sampled_from(_KEYS), st.text(max_size=900))))
def test_any_query_is_a_form_and_then_a_request_or_one_error(query: list[tuple[str, str]]) -> None:
    assert asks_or_explains(form, query, ConflictRequest)


@pytest.mark.parametrize(
    "changes",
    [
        {"pairs": ()},
        {},
        {"pairs": (), "choice": "first", "template": "alpaca-input", "seed": 10},
        {"pairs": (), "samples": 12, "unit": "attention", "loss": "sum", "gamma": -0.25, "epsilon": 1e-6, "checkpointing": True},
        {"pairs": (), "weights": False},
        {"pairs": (), "ffn": "topk", "topk": 0.5, "topk_share": 0.9, "topk_layers": "1-2", "select": "abs-up", "dtype": "bfloat16"},
    ],
)
def test_a_permalink_and_a_command_lead_back_to_the_same_request(changes: dict[str, Any]) -> None:
    report = _asked(of_model("org/name", conflict_report()), **changes)
    pinned = report.request.model_copy(update={"model": f"org/name@{COMMIT}"})
    assert _again(permalink(as_read(report))) == pinned
    options = parsed(command(as_read(report)), "conflict", add_options)
    if report.request.pairs:
        assert options.pop("data") == "pairs.jsonl"
        options["pairs"] = report.request.pairs
    assert ConflictRequest(**{name: options[name] for name in options if name in ConflictRequest.model_fields}) == pinned


def test_a_dataset_is_pinned_and_the_default_link_is_short() -> None:
    report = conflict_report()
    link = permalink(as_read(_asked(report, pairs=(), data="org/data")))
    assert link == f"?model=sample%3Atiny-bf16&data=org%2Fdata%40{COMMIT}"
    assert _again(link).data == f"org/data@{COMMIT}"
    assert permalink(as_read(_asked(report, pairs=()))) == "?model=sample%3Atiny-bf16"
    for unused in ({}, {"topk": 0.5, "topk_layers": "all", "select": "up"}):
        assert command(as_read(_asked(report, pairs=(), **unused))) == "mantissa conflict sample:tiny-bf16"


def test_pairs_that_are_too_long_for_a_link_are_left_out_and_asked_for_again() -> None:
    long = ({"instruction": "a", "output": "b" * LINKED_CHARACTERS}, {"instruction": "a", "output": "b"})
    link = permalink(as_read(_asked(conflict_report(), pairs=long)))
    assert len(link) < 100
    query = query_of(link)
    assert form.filled(query)["data"] == PAIRS
    assert "paste them again" in (PAGE.prefill(query).status or "")


def test_an_address_fills_the_fields_or_says_why_not() -> None:
    refused = PAGE.prefill([("model", MODEL), ("samples", "x")])
    assert skips_all_but_the_model(refused, MODEL, "must be a whole number")
    assert PAGE.prefill([("samples", "5")])[1:] == (None, ())
    assert PAGE.prefill([("model", MODEL), ("samples", "5")]) == ({"model": MODEL, "samples": "5"}, "", None)


@pytest.mark.parametrize(
    "arguments",
    [
        {"model": MODEL, "samples": 2.5},
        {"model": MODEL, "weights": "no"},
        {"model": MODEL, "pairs": [{"instruction": "a"}, {}]},
        {"model": MODEL, "pairs": [{"instruction": "a", "output": "b"}] * 2, "data": "org/data"},
        {"model": MODEL, "data": "./pairs.jsonl"},
        {"model": "/etc/passwd"},
    ],
)
def test_what_can_be_no_measurement_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(gr.Error):
        list(endpoint(ANALYZERS["conflict"])(**arguments))


def test_the_endpoint_gives_progress_with_rates_and_then_the_report() -> None:
    rows = [{"instruction": f"Say {word}.", "output": word} for word in ("one", "two", "three", "four")]
    *_, last = endpoint(ANALYZERS["conflict"])(
        MODEL, pairs=rows, samples=4.0, ffn="topk", topk_layers="all", weights=False
    )  # JSON has no integers
    found = ConflictReport.model_validate(last)
    assert [each.output for each in found.request.pairs] == ["one", "two", "three", "four"]
    assert (found.data.source, found.data.samples, found.ffn.variant, found.weights) == ("pairs", 4, "topk", None)


def test_a_local_file_is_refused_before_it_is_looked_for() -> None:
    with pytest.raises(InvalidRequest, match="command line only"):
        list(job(request({"model": MODEL, "data": DATASET, "dataset": "/etc/shadow.jsonl"})))
