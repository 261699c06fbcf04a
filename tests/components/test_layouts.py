"""The layouts of all analyzers: tabs, tables and figures of the finished examples, and of the same reports full of hostile text."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, get_args, get_type_hints

import plotly.graph_objects as go
import pytest
from pydantic import BaseModel

from analyzers import ANALYZERS, with_pages
from analyzers.core.options import is_subject
from analyzers.core.report import Report
from components import store
from components.result.layout import Figure, Layout, Table

HOSTILE = "<img src=x onerror=alert(1)>\"'&\u202e"
NAMES = list(ANALYZERS)
PAGES = [analyzer.name for analyzer in with_pages()]


def module(name: str) -> Any:
    return ANALYZERS[name].component("layout")


@cache
def example(name: str) -> Any:
    """Return the finished example, of parents and sparsity the one within that of compare."""
    report: Any = store.example(name if name in PAGES else "compare")
    assert report is not None
    return report if name in PAGES else getattr(report, name)


@cache
def hostile(name: str) -> Any:
    """Return the example with hostile text within every text that is not one of a few words."""
    return _attacked(example(name), str)


def _attacked(value: Any, kind: Any) -> Any:
    if isinstance(value, str):
        return f"{value[:1]}{HOSTILE}{value[1:]}" if str in _kinds(kind) else value
    if isinstance(value, tuple | list):
        return type(value)(_attacked(each, kind) for each in value)
    if isinstance(value, dict):
        return {_attacked(key, kind): _attacked(each, kind) for key, each in value.items()}
    if isinstance(value, BaseModel):
        kinds = {name: field.annotation for name, field in type(value).model_fields.items()}
        return value.model_copy(update={name: _attacked(getattr(value, name), kinds[name]) for name in kinds})
    if is_dataclass(value) and not isinstance(value, type):
        kinds = get_type_hints(type(value))
        return replace(value, **{field.name: _attacked(getattr(value, field.name), kinds[field.name]) for field in fields(value)})
    return value


def _kinds(annotation: Any) -> set[Any]:
    return {annotation} | {kind for inner in get_args(annotation) for kind in _kinds(inner)}


def parts(report: Report) -> dict[str, list[tuple[Table | Figure, Any]]]:
    """Return the parts of each tab that have content, with what they show."""
    layout: Layout = module(report.analyzer).LAYOUT
    tabs: dict[str, list[tuple[Table | Figure, Any]]] = {}
    for tab in layout.tabs:
        if (inner := tab.part(report)) is not None:
            shown = [(part, part.draw(inner) if isinstance(part, Figure) else list(part.declared(inner).rows(inner))) for part in tab.parts]
            tabs[tab.title] = [(part, content) for part, content in shown if content]
    return {title: shown for title, shown in tabs.items() if shown}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("report", [example, hostile])
def test_a_result_has_at_most_five_tabs_and_nothing_twice(name: str, report: Callable[[str], Any]) -> None:
    shown = parts(report(name))
    assert 1 <= len(shown) <= 5
    every = [part for content in shown.values() for part, _ in content]
    titles = [part.title for part in every if isinstance(part, Figure)]
    keys = [part.key for part in every if isinstance(part, Table)]
    assert len(titles) == len(set(titles)) and len(keys) == len(set(keys)) and keys
    assert len({tab.title for tab in module(name).LAYOUT.tabs}) == len(module(name).LAYOUT.tabs)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("report", [example, hostile])
def test_figures_are_plotly_json_in_which_text_stays_text(name: str, report: Callable[[str], Any]) -> None:
    figures = module(name).LAYOUT.figures(report(name))
    assert bool(figures) == (name != "check")
    texts: list[str] = []
    for figure in figures.values():
        content = json.loads(figure.to_json(), parse_constant=pytest.fail)
        go.Figure(content)  # raises ValueError for what Plotly does not know
        texts += _texts(content)
    assert not [text for text in texts if "<img" in text or "\u202e" in text]
    assert any("&lt;img" in text for text in texts) == (report is hostile and name != "check")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)
    elif isinstance(value, str):
        yield value


# Analyzer, figure, table, its columns, and what the figure draws of them.
DRAWN: list[tuple[str, str, str, list[str], Callable[[go.Figure], list[Any]], Callable[[float], float]]] = [
    ("dtype", "Largest magnitude by layer", "layers", ["abs_max"], lambda figure: [y for trace in figure.data for y in trace.y], float),
    (
        "sparsity",
        "Sparsity by layer and role",
        "layers",
        ["attention", "mlp"],
        lambda figure: list(figure.data[0].z[1:3]),
        lambda x: x / 100,
    ),
    ("precision", "Differences of log-probabilities", "variants", ["logprob_mean"], lambda figure: list(figure.data[0].x), float),
    ("conflict", "Share of each sample", "samples", ["share"], lambda figure: list(figure.data[0].y), lambda x: x / 100),
    ("exit", "Cosines at the head", "methods", ["cosine_p10"], lambda figure: [trace.x[0] for trace in figure.data[1::2]], float),
]


@pytest.mark.parametrize(("name", "title", "key", "columns", "values", "scale"), DRAWN, ids=[row[0] for row in DRAWN])
def test_a_figure_draws_the_values_of_the_table(name: str, title: str, key: str, columns: list[str], values: Any, scale: Any) -> None:
    report = example(name)
    table = Table(key).declared(report).frame(report)[columns].to_numpy().ravel()
    drawn = [scale(each) for each in _numbers(values(module(name).LAYOUT.figures(report)[title]))]
    assert sorted(drawn) == pytest.approx(sorted(each for each in table if not math.isnan(each))) and drawn


def _numbers(values: Any) -> Iterator[float]:
    for value in values:
        if value is not None:
            yield from _numbers(value) if hasattr(value, "__len__") else [float(value)]


@pytest.mark.parametrize("name", PAGES)
def test_a_question_has_examples_and_few_options_in_view(name: str) -> None:
    question, request = module(name).QUESTION, ANALYZERS[name].request_model()
    requests = [request(**typed) for typed in question.examples.values()]
    assert len(requests) >= 3 and requests[0] == example(name).request
    assert len(question.front) <= 4 and not [field for field in question.front if is_subject(request, field)]
    assert (question.tokens(requests[0]) > 0) == ANALYZERS[name].runs_model
