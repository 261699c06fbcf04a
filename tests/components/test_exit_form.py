"""The exit page's form, link and command: the state of the page as text."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzers.checkpoints import Access
from analyzers.core.errors import InvalidReference, MantissaError
from analyzers.exit_feedback import ExitReport, ExitRequest
from analyzers.exit_feedback.command import add_options
from components.exit import form
from components.exit.form import COST, request
from components.exit.page import PAGE
from components.forms.form import DATASET, as_read, command, permalink
from components.running import zero_gpu
from components.running.jobs import job
from tests.components.dtype_reports import COMMIT, of_model
from tests.components.exit_reports import at_a_glance
from tests.components.model_forms import asks_or_explains, parsed, query_of

MODEL = "sample:tiny-bf16"


def _asked(found: ExitReport, **changes: Any) -> ExitReport:
    """``found`` as if something else had been asked for."""
    asked = ExitRequest.model_validate({"model": found.request.model} | changes)
    inputs = found.inputs.model_copy(update={"source": asked.data.partition("@")[0], "commit": COMMIT})
    return found.model_copy(update={"request": asked, "inputs": inputs})


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
    "fields",
    [
        {"model": "a/b, c/d"},
        {"methods": ("spam",)},
        {"k": "many"},
        {"residual": "nan"},
        {"dtype": "int8"},
    ],
)
def test_bad_fields_are_one_sentence(fields: dict[str, Any]) -> None:
    with pytest.raises(MantissaError) as caught:
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


def test_a_misspelt_key_of_an_address_is_named_and_nothing_starts() -> None:
    _, status, only = PAGE.prefill([("modle", MODEL), ("utm_source", "x")])
    assert only == () and "Unknown in the address: modle (did you mean model?)." in (status or "")
    typed, status, only = PAGE.prefill([("model", MODEL), ("sede", "1"), ("rnak", "4"), ("embed", "1")])
    assert (typed, only) == ({"model": MODEL}, None) and status
    assert "rnak (did you mean rank?), sede (did you mean seed or sweep?). Correct it, or start without it." in status


def test_a_local_file_is_refused_before_it_is_looked_for() -> None:
    with pytest.raises(InvalidReference, match="command line only"):
        list(job(request({"model": MODEL, "data": DATASET, "dataset": "/etc/shadow.jsonl"})))


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
