"""Stored results: the same request is not computed twice, and what is not public leaves nothing."""

from pathlib import Path
from typing import Any

import pytest

from analyzers.core.errors import HubError
from analyzers.core.report import Report
from analyzers.core.request import Progress
from analyzers.dtype_detection import DtypeReport, DtypeRequest
from analyzers.language_models.samples import sample_folder
from analyzers.update_sparsity import SparsityRequest
from components.library import Library, Query
from components.running import jobs
from components.site import stored_results
from components.site.stored_results import STORED
from tests.components.dtype_reports import report
from tests.components.sparsity_reports import sparsity_report
from tests.hub import Fault, LocalHub


def _files(sample: str) -> dict[str, bytes | Path | Any]:
    return {path.name: path for path in sample_folder(sample).iterdir()}


def _run(request: Any, again: bool = False) -> tuple[Report, bool]:
    """The report, and whether it was stored."""
    *progress, last = jobs.job(request, again=again)
    assert isinstance(last, Report)
    return last, any(isinstance(item, Progress) and item.unit == STORED for item in progress)


def test_the_same_request_is_answered_from_the_library_with_the_same_json(library: Library, hub: LocalHub) -> None:
    commit = hub.add("org/name", _files("tiny-bf16"))
    first, stored = _run(DtypeRequest(model="org/name"))
    assert not stored
    weights = sum("model.safetensors" in request.path for request in hub.requests)
    second, stored = _run(DtypeRequest(model="org/name"))
    assert stored
    assert second.model_dump_json() == first.model_dump_json()
    assert sum("model.safetensors" in request.path for request in hub.requests) == weights
    asked = len(hub.requests)
    pinned, stored = _run(DtypeRequest(model=f"org/name@{commit}"))
    assert stored and pinned == first
    assert len(hub.requests) == asked  # a commit that is named need not be looked up
    for other in (
        DtypeRequest(model="org/name", seed=1),
        DtypeRequest(model="org/name", include="mlp"),
        DtypeRequest(model="org/name", mode="exact"),
    ):
        assert not _run(other)[1]
    fresh, stored = _run(DtypeRequest(model="org/name"), again=True)
    assert not stored and fresh.id == first.id
    hub.commit("org/name", {"README.md": b"changed"})
    moved, stored = _run(DtypeRequest(model="org/name"))
    assert not stored and moved.id != first.id


def test_a_pair_is_stored_by_both_commits_in_their_order(library: Library, hub: LocalHub) -> None:
    hub.add("org/base", _files("tiny-bf16"))
    hub.add("org/tuned", _files("tiny-tuned"))
    first, _ = _run(SparsityRequest(base="org/base", tuned=("org/tuned",)))
    assert _run(SparsityRequest(base="org/base", tuned=("org/tuned",))) == (first, True)
    assert not _run(SparsityRequest(base="org/tuned", tuned=("org/base",)))[1]


def test_revisions_of_one_repository_are_told_apart(library: Library) -> None:
    made = sparsity_report()
    changed = made.model_copy(update={"base": made.base.model_copy(update={"commit": "e" * 40})})
    assert len({stored_results.key_of(made), stored_results.key_of(changed)}) == 2


@pytest.mark.parametrize("kind", [{"private": True}, {"gated": "auto"}])
def test_what_is_not_public_leaves_no_trace(library: Library, hub: LocalHub, kind: Any) -> None:
    hub.add("org/secret", _files("tiny-bf16"), **kind)
    hub.user("hf_" + "c" * 30, "ann", ["org/secret"])
    with pytest.raises(Exception, match="org/secret"):
        _run(DtypeRequest(model="org/secret"))
    assert library.results(Query()).total == 0
    secret = report("org/secret", checkpoint=report("org/secret").checkpoint.model_dump() | {"public": False})
    stored_results.store(secret)
    assert library.results(Query()).total == 0
    assert not stored_results.is_stored(secret)


def test_an_unreachable_hub_is_not_waited_for_twice(library: Library, hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analyzers.checkpoints.hub.replies.HUB_ATTEMPTS", 1)
    hub.add("org/name", _files("tiny-bf16"))
    fault = hub.fault(Fault("/api/models/org/name", times=None, status=500))
    with pytest.raises(HubError):
        list(jobs.job(DtypeRequest(model="org/name")))
    assert fault.hits == 1


def test_a_row_under_the_key_of_another_request_is_not_served(library: Library, hub: LocalHub) -> None:
    hub.add("org/name", _files("tiny-bf16"))
    hub.add("org/other", _files("tiny-fp32"))
    right, _ = _run(DtypeRequest(model="org/name"))
    wrong, _ = _run(DtypeRequest(model="org/other"))
    key = stored_results.key_of(right)
    library.add_result(wrong.model_copy(update={"id": "f" * 64}), key, public=True)
    assert len(library.find(key)) == 2
    assert _run(DtypeRequest(model="org/name")) == (right, True)


def test_without_a_library_nothing_is_found_and_nothing_fails() -> None:
    assert stored_results.library() is None
    assert stored_results.find(DtypeRequest(model="sample:tiny-bf16")) is None
    stored_results.store(report())
    assert not stored_results.is_stored(report())
    assert stored_results.consensus("org/name") is None


def test_a_stored_report_of_another_version_is_computed_again(library: Library, hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("org/name", _files("tiny-bf16"))
    _run(DtypeRequest(model="org/name"))
    monkeypatch.setattr(library, "result", lambda identifier: b'{"analyzer": "dtype", "new_field": 1}')
    assert not _run(DtypeRequest(model="org/name"))[1]


def test_a_library_that_fails_costs_nobody_their_answer(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(library, "add_result", fail)
    stored_results.store(report("org/name"))


def test_a_revision_is_resolved_once_per_run(library: Library, hub: LocalHub) -> None:
    commit = hub.add("org/name", _files("tiny-bf16"))
    found, _ = _run(DtypeRequest(model="org/name@main"))
    resolved = [request.path for request in hub.requests if "/api/models/org/name/revision/main" in request.path]
    assert len(resolved) == 1 and not any("/resolve/main/" in request.path for request in hub.requests)
    assert isinstance(found, DtypeReport) and found.checkpoint.commit == commit
    assert found.request == DtypeRequest(model="org/name@main")  # as asked for
