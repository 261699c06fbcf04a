"""Adapters in the product: what the library keeps of their results, and where it lists them."""

import json
from pathlib import Path
from typing import Any

import pytest

from analyzers.check import CheckReport, CheckRequest
from analyzers.check import analyze as check
from analyzers.checkpoints import Access
from analyzers.compare import CompareReport, CompareRequest
from analyzers.compare import analyze as compare
from components.library.library import Library
from components.library.storable_reports import adapters_of, storable_result
from components.library_page.label_details import model_labels
from tests.hub.server import LocalHub
from tests.update_sparsity.adapters import base, factors, write_adapter

TIME = "2026-11-24T12:00:00.000000Z"


@pytest.fixture
def published(hub: LocalHub, tmp_path: Path) -> None:
    """Publish a base and an adapter that names it."""
    folder, tensors = base(tmp_path)
    (folder / "config.json").write_text("{}")
    adapter = write_adapter(tmp_path / "adapter", factors(tensors, 1e-3, "q_proj"))
    for name, path in (("org/base", folder), ("other/adapter", adapter)):
        hub.add(name, {file.name: file for file in path.iterdir()})


def last(steps: Any) -> Any:
    """Return the report, which ends an analysis."""
    return list(steps)[-1]


@pytest.mark.usefixtures("published")
def test_results_of_an_adapter_know_its_base() -> None:
    checked = last(check(CheckRequest(model="other/adapter"), Access()))
    assert isinstance(checked, CheckReport) and checked.base is not None and checked.base.ref == "org/base"
    assert not checked.findings and checked.loading_judged
    compared = last(compare(CompareRequest(models=("org/base", "other/adapter")), Access()))
    assert isinstance(compared, CompareReport) and compared.sparsity is not None and compared.sparsity.adapter is not None
    assert (compared.answer.code, compared.answer.values["adapters"]) == ("merged", ("other/adapter",))
    for report in (checked, compared, compared.sparsity):
        stored = storable_result(report.model_dump_json(), key="", created=TIME, contributor="")
        subject = "other/adapter" if report is checked else "org/base+other/adapter"
        assert stored is not None and stored.models == (subject, "org/base")
        assert adapters_of(json.loads(report.model_dump_json()), "org/base") == ["other/adapter"]
        private = report.model_dump_json().replace('"public":true', '"public":false')
        assert storable_result(private, key="", created=TIME, contributor="") is None


@pytest.mark.usefixtures("published")
def test_a_model_lists_its_adapters(library: Library) -> None:
    assert not library.adapters("org/base")
    report = last(check(CheckRequest(model="other/adapter"), Access()))
    assert library.add_result(report, public=True, created=TIME)
    assert library.adapters("ORG/base") == ("other/adapter",) and not library.adapters("other/adapter")
    assert "Adapters of it" in model_labels(library, "org/base") and "other/adapter" in model_labels(library, "org/base")
    assert "Adapters of it" not in model_labels(library, "other/adapter")
