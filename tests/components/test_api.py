"""The endpoints as functions: what they accept, and how often they report."""

from typing import Any

import gradio as gr
import pytest

from analyzers import ANALYZERS, limits
from analyzers.base import Progress
from components.api.endpoints import endpoint, many, paced

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
        ({"base": "a/b", "tuned": ["c/d e/f"]}, "space"),
        ({"base": "a/b", "tuned": ["c/d"] * (limits.TRAJECTORY + 1)}, "MANTISSA_TRAJECTORY"),
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


def test_progress_comes_a_few_times_a_second_and_nothing_else_is_held_back() -> None:
    items = [Progress(done=i, total=1000, unit="bytes") for i in range(1000)]
    assert list(paced([*items, "report"])) == [items[0], "report"]
