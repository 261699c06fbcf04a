"""Filters of the library's endpoints: a value that no row can have is refused, and one that no row happens to have finds nothing."""

from typing import Any

import gradio as gr
import pytest

from components.api.library_endpoints import finder
from components.library import Library
from tests.components.dtype_reports import report

find_models, find_labels, find_results = map(finder, ("models", "labels", "results"))


@pytest.mark.parametrize(
    ("function", "filters"),
    [
        (find_models, {"precision": "BF16"}),
        (find_models, {"storage": "bf16"}),
        (find_models, {"passed_through": "fp12"}),
        (find_models, {"fp16_risk": "weights fit"}),
        (find_results, {"analyzer": "x\u202e" * 20}),
        (find_labels, {"model": "no such model"}),
        (find_results, {"model": "org/name@main"}),
    ],
)
def test_a_value_that_cannot_occur_is_refused(function: Any, filters: dict[str, Any], library: Library) -> None:
    with pytest.raises(gr.Error) as caught:
        function(**filters)
    assert str(caught.value.message).isprintable() and len(str(caught.value.message)) < 600


def _found(name: str, value: Any) -> int:
    total: int = find_results(**{name: value})["total"]
    return total


def test_a_value_that_can_occur_finds_what_there_is(library: Library) -> None:
    made = report("org/name", id="1" * 64)
    library.add_result(made, public=True)
    facts = library.result_row(made.id)
    assert facts is not None
    stored = {name: getattr(facts.result, name) for name in ("storage", "passed_through", "trained_in", "fp16_risk", "analyzer")}
    for name, value in stored.items():
        assert value and _found(name, value.split()[0]) == 1
    assert find_results(model="org/NAME")["total"] == 1 and find_results(model="org/other")["total"] == 0
    nothing = {"storage": "F64", "passed_through": "fp8_e5m2", "trained_in": "mxfp4", "fp16_risk": "unknown", "analyzer": "exit"}
    assert all(value not in stored[name].split() and _found(name, value) == 0 for name, value in nothing.items())
    assert all(_found(name, "") == 1 for name in nothing)


def test_a_quantized_type_of_gguf_is_known_where_it_is_stored(library: Library) -> None:
    with pytest.raises(gr.Error, match="storage must be one of"):
        find_results(storage="Q4_K")
    made = report("org/name", id="2" * 64)
    quantized = made.storage[0].model_copy(update={"dtype": "Q4_K"})
    library.add_result(made.model_copy(update={"storage": (quantized,)}), public=True)
    assert find_results(storage="Q4_K")["total"] == 1
