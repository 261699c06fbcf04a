"""The endpoints as functions: what they accept, and how often they report."""

import json
from typing import Any

import gradio as gr
import pytest

from analyzers import ANALYZERS, Analyzer
from analyzers.core import limits
from analyzers.core.options import describe, offered
from analyzers.core.request import Progress
from components.api.endpoints import endpoint, in_short, many, paced
from components.site import addresses

INSPECT, MANY, SPARSITY = endpoint(ANALYZERS["dtype"]), many(ANALYZERS["dtype"]), endpoint(ANALYZERS["sparsity"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "model is missing: name a checkpoint"),
        ({"model": None}, "model is missing: name a checkpoint"),
        ({"model": ["a/b"]}, "Model must be text."),
        ({"model": 5}, "Model must be text, not 5."),
        ({"model": "a/b", "seed": True}, "Seed must be a whole number, not True"),
        ({"model": "a/b", "seed": 1.5}, "Seed must be a whole number, not 1.5."),
        ({"model": "a/b", "budget": {}}, "Budget must be a whole number."),
        ({"model": "a/b", "budget": "99GB"}, "^'?The budget must be from 1 byte"),
        ({"model": "a/b", "mode": "evil"}, "Mode must be .*quick.* or .*exact"),
    ],
)
def test_what_can_be_no_request_is_one_sentence(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(gr.Error, match=said):
        list(INSPECT(**arguments))


@pytest.mark.parametrize(
    ("models", "said"),
    [
        (None, "list of model ids"),
        ([], "list of model ids"),
        ([None], "list of model ids"),
        ({"a": 1}, "list of model ids"),
        (["", "sample:tiny-fp32"], "list of model ids"),
        ([f"m{i}" for i in range(limits.MODELS + 1)], "at most"),
    ],
)
def test_what_can_be_no_list_of_models_is_one_sentence(models: Any, said: str) -> None:
    with pytest.raises(gr.Error, match=said):
        list(MANY(models))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "base is missing"),
        ({"base": "a/b", "tuned": None}, "tuned is missing"),
        ({"base": ["a/b"], "tuned": ["c/d"]}, "Base must be text."),
        ({"base": "a/b", "tuned": [1]}, "Entry 1 of tuned must be text, not 1."),
        ({"base": "a/b", "tuned": ["c/d e/f"]}, "is not a model id"),
        ({"base": "a/b", "tuned": ["c/d"] * (limits.TRAJECTORY + 1)}, "at most 64 checkpoints are compared"),
        ({"base": "a/b", "tuned": ["c/d"], "eta": True}, "Eta must be a number"),
        ({"base": "a/b", "tuned": ["c/d"], "eta": 2}, "Eta must lie between"),
        ({"base": "a/b", "tuned": ["c/d"], "spectral": "yes"}, 'Spectral must be true or false, not "yes".'),
        ({"base": "a/b", "tuned": ["c/d"], "seed": 0.5}, "Seed must be a whole number, not 0.5."),
        ({"base": "/etc/passwd", "tuned": ["sample:tiny-tuned"]}, "command line"),
    ],
)
def test_what_can_be_no_comparison_is_one_sentence(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(gr.Error, match=said):
        list(SPARSITY(**arguments))


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


@pytest.mark.parametrize("analyzer", ANALYZERS.values(), ids=ANALYZERS)
def test_every_parameter_is_described_in_one_line(analyzer: Analyzer) -> None:
    described = [describe(analyzer.request_model(), name) for name in offered(analyzer.request_model(), "site")]
    assert all(text.endswith(".") and "\n" not in text and len(text) > 15 for text in described)


def test_progress_comes_a_few_times_a_second_and_nothing_else_is_held_back() -> None:
    items = [Progress(done=i, total=1000, unit="bytes") for i in range(1000)]
    assert list(paced([*items, "report"])) == [items[0], "report"]
