"""The endpoints as functions: what they accept, and how often they report."""

from typing import Any

import gradio as gr
import pytest

from analyzers import limits
from analyzers.base import Progress
from components.api.endpoints import inspect, inspect_many, paced, sparsity


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "Type or paste a model id"),
        ({"model": None}, "Type or paste a model id"),
        ({"model": ["a/b"]}, "model must be a text, not a list."),
        ({"model": 5}, "model must be a text, not a number."),
        ({"model": "a/b", "seed": True}, "seed must be a text or a whole number, not true or false."),
        ({"model": "a/b", "seed": 1.5}, "not a fraction"),
        ({"model": "a/b", "budget": {}}, "not an object"),
        ({"model": "a/b", "budget": "99GB"}, "^'?The budget must be from 1 byte"),
        ({"model": "a/b", "mode": "evil"}, "Mode must be .*quick.* or .*exact"),
    ],
)
def test_what_can_be_no_request_is_one_sentence(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(gr.Error, match=said):
        list(inspect(**arguments))


@pytest.mark.parametrize(
    ("models", "said"),
    [
        (None, "Type or paste a model id"),
        ([], "Type or paste a model id"),
        ([None], "list of model ids"),
        ({"a": 1}, "list of model ids"),
        (["a/b c/d"], "one id in each text"),
        (["", "sample:tiny-fp32"], "one id in each text"),
        ([f"m{i}" for i in range(limits.MODELS + 1)], "at most"),
    ],
)
def test_what_can_be_no_list_of_models_is_one_sentence(models: Any, said: str) -> None:
    with pytest.raises(gr.Error, match=said):
        list(inspect_many(models))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "the base checkpoint"),
        ({"base": "a/b", "tuned": None}, "the checkpoint it was tuned to"),
        ({"base": ["a/b"], "tuned": ["c/d"]}, "base must be a text, not a list."),
        ({"base": "a/b", "tuned": [1]}, "tuned must be a list of model ids"),
        ({"base": "a/b", "tuned": ["c/d e/f"]}, "one id in each text"),
        ({"base": "a/b", "tuned": ["c/d"] * (limits.TRAJECTORY + 1)}, "MANTISSA_TRAJECTORY"),
        ({"base": "a/b", "tuned": ["c/d"], "eta": True}, "eta must be a text or a number, not true or false."),
        ({"base": "a/b", "tuned": ["c/d"], "eta": 2}, "Eta must lie between"),
        ({"base": "a/b", "tuned": ["c/d"], "spectral": "yes"}, "spectral must be true or false, not a text."),
        ({"base": "a/b", "tuned": ["c/d"], "seed": 0.5}, "not a fraction"),
        ({"base": "/etc/passwd", "tuned": ["sample:tiny-tuned"]}, "command line"),
    ],
)
def test_what_can_be_no_comparison_is_one_sentence(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(gr.Error, match=said):
        list(sparsity(**arguments))


def test_many_are_a_report_or_a_sentence_each_in_order() -> None:
    *progress, found = inspect_many(["sample:tiny-fp32", "sample:nope", "sample:tiny-bf16"], seed=1.0)  # type: ignore[arg-type]  # JSON has no integers
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
