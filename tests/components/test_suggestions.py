"""Candidates from the library: public models with tensors of the same shapes, compared where none is named."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analyzers.checkpoints import Access
from analyzers.core.report import Report
from analyzers.core.request import Progress
from analyzers.dtype_detection import DtypeRequest, analyze
from analyzers.parents import ParentsReport, ParentsRequest
from components.forms.form import as_read, permalink
from components.library import Library, Query
from components.parents.suggestions import suggested
from components.running.jobs import job
from components.site import stored_results
from tests.dtype_detection.checkpoints import write
from tests.hub import LocalHub
from tests.parents.checkpoints import F32, Tensors, model, tuned

FIRST, SECOND = model(10, layers=2), model(11, layers=2)
TOKEN = "hf_friend"


def add(hub: LocalHub, folder: Path, name: str, tensors: Tensors, card: str = "", **options: Any) -> None:
    files = {path.name: path for path in write(folder / name, tensors).iterdir()}
    hub.add(name, files | ({"README.md": card.encode()} if card else {}), **options)


@pytest.fixture
def alike(hub: LocalHub, library: Library, tmp_path: Path) -> LocalHub:
    """A Hub with models of the same shapes, whose passports are in the library, and a few others."""
    add(hub, tmp_path, "org/first", FIRST)
    add(hub, tmp_path, "org/second", {name.removeprefix("model."): tensor.to(F32) for name, tensor in SECOND.items()})
    add(hub, tmp_path, "org/wide", model(12, layers=2, width=64))
    add(hub, tmp_path, "org/secret", model(13, layers=2), private=True)
    add(hub, tmp_path, "org/tuned", tuned(FIRST, 0.01))
    hub.user(TOKEN, "friend", ["org/secret"])
    for name in ("org/first", "org/second", "org/wide"):
        list(job(DtypeRequest(model=name)))
    *_, secret = analyze(DtypeRequest(model="org/secret"), Access(token=TOKEN))
    assert isinstance(secret, Report)
    stored_results.store(secret, Access(token=TOKEN))
    assert library.counts().results == 3
    return hub


def answer(model: str, **options: Any) -> ParentsReport:
    *_, report = job(ParentsRequest(model=model, **options))
    assert isinstance(report, ParentsReport)
    return report


def found(steps: Iterator[Progress]) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def test_they_are_compared_where_none_is_named(alike: LocalHub) -> None:
    report = answer("org/tuned")
    assert report.verdict == "derived" and report.parents == ("org/first",)
    assert [(each.ref, each.source) for each in report.candidates] == [("org/first", "library"), ("org/second", "library")]
    assert report.request.suggested == () and stored_results.is_stored(report)
    assert permalink(as_read(report)) == f"?model=org%2Ftuned%40{report.checkpoint.commit}&mode=quick"
    assert [item.unit for item in job(report.request) if isinstance(item, Progress)] == [stored_results.STORED]
    pinned = report.request.model_copy(update={"model": f"org/tuned@{report.checkpoint.commit}"})
    assert stored_results.find(pinned, ask=False) is not None
    named = answer("org/tuned", candidates=("org/second",))
    assert [(each.ref, each.source) for each in named.candidates] == [("org/second", "named")] and named.id != report.id


def test_nothing_is_suggested_for_what_cannot_be_read(alike: LocalHub, library: Library) -> None:
    assert found(suggested("org/tuned", Access())) == ["org/second", "org/first"]
    assert found(suggested("org/first", Access())) == ["org/second"]
    assert found(suggested("org/secret", Access())) == found(suggested("org/nobody", Access())) == found(suggested("/etc", Access())) == []
    assert found(suggested("org/secret", Access(token=TOKEN))) == ["org/second", "org/first"]
    assert "secret" not in str([row.result.models for row in library.results(Query()).rows])
