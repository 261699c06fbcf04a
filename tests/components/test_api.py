"""The endpoints as functions: what they accept, and how often they report."""

import json
from typing import Any

import gradio as gr
import pytest

from analyzers import ANALYZERS
from analyzers.core import limits
from analyzers.core.request import Progress
from components.api.endpoints import endpoint, in_short, many, paced
from components.site import addresses

INSPECT, MANY, SPARSITY = endpoint(ANALYZERS["dtype"]), many(ANALYZERS["dtype"]), endpoint(ANALYZERS["sparsity"])


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        (INSPECT, {}),
        (INSPECT, {"model": ["a/b"]}),
        (INSPECT, {"model": "a/b", "seed": True}),
        (INSPECT, {"model": "a/b", "budget": "99GB"}),
        (INSPECT, {"model": "a/b", "mode": "evil"}),
        (MANY, {"models": None}),
        (MANY, {"models": {"a": 1}}),
        (MANY, {"models": [f"m{i}" for i in range(limits.MODELS + 1)]}),
        (SPARSITY, {"base": "a/b", "tuned": [1]}),
        (SPARSITY, {"base": "a/b", "tuned": ["c/d"] * (limits.TRAJECTORY + 1)}),
        (SPARSITY, {"base": "a/b", "tuned": ["c/d"], "eta": 2}),
        (SPARSITY, {"base": "a/b", "tuned": ["c/d"], "spectral": "yes"}),
        (SPARSITY, {"base": "/etc/passwd", "tuned": ["sample:tiny-tuned"]}),
    ],
)
def test_what_can_be_no_request_is_refused(call: Any, arguments: dict[str, Any]) -> None:
    with pytest.raises(gr.Error):
        list(call(**arguments))


def test_many_are_a_report_or_a_sentence_each_in_order() -> None:
    *progress, found = MANY(["sample:tiny-fp32", "sample:nope", "sample:tiny-bf16"], seed=1.0)  # JSON has no integers
    assert [item.get("error", item.get("checkpoint", {}).get("ref"))[:24] for item in found] == [
        "sample:tiny-fp32",
        "There is no built-in sam",
        "sample:tiny-bf16",
    ]
    assert found[1]["model"] == "sample:nope"
    assert progress[0]["note"].startswith("1 of 3, sample:tiny-fp32: ")


@pytest.mark.parametrize("name", ["dtype", "sparsity"])
def test_a_summary_is_the_same_answer_in_short(name: str) -> None:
    analyzer = ANALYZERS[name]
    asked = {"model": "sample:tiny-bf16-as-fp32"} if name == "dtype" else {"base": "sample:tiny-bf16", "tuned": ["sample:tiny-tuned"]}
    *_, full = endpoint(analyzer)(**asked)
    *_, short = endpoint(analyzer, f"{name}_summary", in_short)(**asked)
    report = analyzer.report_model().model_validate(full)
    assert (short["analyzer"], short["id"], short["notes"]) == (name, full["id"], list(map(str, report.notes)))
    assert short["headline"] == addresses.layout(name).summary(report) and short["page"] == addresses.recompute(report)
    if name == "dtype":
        assert (short["facts"]["lineage_stored"], short["facts"]["lineage_verdict"]) == ("F32", full["lineage"]["verdict"])
        assert short["facts"]["extremes_abs_min_nonzero"] == full["extremes"]["abs_min_nonzero"]
    else:
        assert short["facts"]["num_changed"] == full["num_changed"] and short["facts"]["interval_low"] is None
    assert 10 * len(json.dumps(short, allow_nan=False)) < len(json.dumps(full))


def test_a_summary_keeps_numbers_that_few_decimals_would_lose() -> None:
    *_, full = endpoint(ANALYZERS["dtype"])(model="sample:tiny-bf16")
    tiny = full | {"extremes": full["extremes"] | {"abs_min_nonzero": 1e-40, "norm_min": None}}
    facts = in_short(ANALYZERS["dtype"].report_model().model_validate(tiny))["facts"]
    assert (facts["extremes_abs_min_nonzero"], facts["extremes_norm_min"]) == (1e-40, None)


def test_progress_comes_a_few_times_a_second_and_nothing_else_is_held_back() -> None:
    items = [Progress(done=i, total=1000, unit="bytes") for i in range(1000)]
    assert list(paced([*items, "report"])) == [items[0], "report"]
