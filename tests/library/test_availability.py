"""Results of repositories that became private, gated or vanished: hidden when looked at next, and removed from the dataset."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from components.library import Library, Query
from components.library.availability import Availability
from tests.components.dtype_reports import report
from tests.components.sparsity_reports import sparsity_report
from tests.hub import LocalHub
from tests.hub.faults import Fault
from tests.library import DATASET, TOKEN
from tests.library.test_publishing import published

# The client uploads with an argument that its transport calls outdated.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
MODELS = ("org/name", "org/base", "org/other")


@pytest.fixture(autouse=True)
def looks_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("components.library.availability.AVAILABLE_SECONDS", 0)


@pytest.fixture
def library(hub: LocalHub, tmp_path: Path) -> Iterator[Library]:
    for name in MODELS:
        hub.add(name, {"config.json": b"{}"})
    hub.add(DATASET, {"README.md": b""}, kind="dataset")
    hub.user(TOKEN, "server", writes=[DATASET])
    with Library.open(tmp_path / "data", DATASET, token=TOKEN, background=False) as opened:
        for number, name in enumerate(MODELS):
            opened.add_result(report(name, id=f"{number:064x}"), public=True)
        yield opened


def _is_shown(library: Library, number: int) -> bool:
    row = library.result_row(f"{number:064x}")
    return row is not None and library.is_available(row.result.models)


@pytest.mark.parametrize("change", [{"private": True}, {"gated": "auto"}, {"info": {"disabled": True}}])
def test_results_are_hidden_at_the_next_look(hub: LocalHub, library: Library, change: dict[str, Any]) -> None:
    assert _is_shown(library, 0)
    hub.add("org/name", {"config.json": b"{}"}, **change)
    assert not _is_shown(library, 0) and _is_shown(library, 1)
    assert library.result(f"{0:064x}") is None and library.model("org/name") is None
    assert {row.result.models for row in library.results(Query()).rows} == {("org/base",), ("org/other",)}


def test_a_comparison_is_withdrawn_with_either_of_its_models(hub: LocalHub, library: Library) -> None:
    saved = library.add_result(sparsity_report(id="f" * 64), public=True)
    assert saved is not None and len(saved.item.models) == 2
    for name in saved.item.models:
        hub.add(name, {"config.json": b"{}"})
    row = library.result_row(saved.item.id)
    assert row is not None and library.is_available(row.result.models)
    hub.add(saved.item.models[-1], {"config.json": b"{}"}, private=True)
    assert not library.is_available(row.result.models) and library.result_row(saved.item.id) is None


def test_nothing_is_withdrawn_while_the_hub_does_not_say_why(hub: LocalHub, library: Library) -> None:
    for status in (500, 429, 403):
        hub.fault(Fault("/api/models", status=status))
        library._availability._paused = float("-inf")
        assert _is_shown(library, 0), status
        hub.clear_faults()


@pytest.mark.exhaustive
def test_within_a_day_the_sweep_removes_what_nobody_looked_at(hub: LocalHub, library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("components.library.availability.AVAILABLE_SECONDS", 900)  # as in an app
    hours = 0.0
    availability = Availability(library._database, lambda: 3600 * hours)
    for number in range(3, 30):
        hub.add(f"org/model-{number}", {"config.json": b"{}"})
        library.add_result(report(f"org/model-{number}", id=f"{number:064x}"), public=True)
    library.publish()

    def looked_at() -> int:
        before = len(hub.requests)
        availability.sweep()
        return sum("/api/models/" in request.path for request in hub.requests[before:])

    assert (looked_at(), looked_at(), looked_at()) == (20, 10, 0)
    hub.remove("org/name")
    hub.add("org/model-29", {"config.json": b"{}"}, private=True)
    hours = 11
    assert looked_at() == 0
    hours = 13
    assert (looked_at(), looked_at(), looked_at()) == (20, 10, 0)
    assert library.results(Query()).total == 28 and {library.result(f"{number:064x}") for number in (0, 29)} == {None}
    library.publish()
    assert sorted(published(hub, "results")) == [f"{number:064x}" for number in range(1, 29)]


def test_withdrawn_results_are_removed_from_the_dataset_and_do_not_return(hub: LocalHub, library: Library, tmp_path: Path) -> None:
    library.publish()
    library.add_result(report("org/name", id=f"{7:064x}"), public=True)
    library.publish()
    assert len(published(hub, "results")) == 4
    hub.add("org/name", {"config.json": b"{}"}, private=True)
    library._availability.sweep()
    assert library.results(Query()).total == 2  # nobody looked
    library.publish()
    assert sorted(published(hub, "results")) == [f"{number:064x}" for number in (1, 2)]
    library.publish()
    with Library.open(tmp_path / "other", DATASET, token=TOKEN, background=False) as restored:
        restored.publish()
        assert restored.results(Query()).total == 2
    hub.add("org/name", {"config.json": b"{}"})
    library.add_result(report("org/name", id=f"{0:064x}"), public=True)
    library.publish()
    assert len(published(hub, "results")) == 3
