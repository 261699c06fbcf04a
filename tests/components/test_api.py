"""The endpoints as functions: what they accept, and how often they report."""

from typing import Any

import gradio as gr
import pytest

from analyzers import limits
from analyzers.base import Progress
from components.api import inspect, inspect_many, paced


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
        ({"model": "a/b", "mode": "evil"}, "'quick' or 'exact'"),
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
