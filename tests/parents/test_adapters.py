"""What a reference says about itself, BASE+ADAPTER, is not asked of the weights: parents and compare say it, with what was measured."""

import pytest

from analyzers.checkpoints import Access
from analyzers.comparison.compare import CompareReport, CompareRequest
from analyzers.comparison.compare import analyze as compare
from analyzers.comparison.parents import ParentsReport, ParentsRequest, analyze
from analyzers.comparison.parents.report import Construction
from tests.update_sparsity.adapters import base, factors, write_adapter


def _parents(model: str, *candidates: str) -> ParentsReport:
    *_, report = analyze(ParentsRequest(model=model, candidates=candidates), Access(local=True))
    assert isinstance(report, ParentsReport)
    return report


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, str]:
    """A base, and the base with each of two adapters; the second changes most of the weights beyond recognition."""
    folder = tmp_path_factory.mktemp("models")
    path, tensors = base(folder)
    first = write_adapter(folder / "first", factors(tensors, 1e-3, "q_proj"))
    second = write_adapter(folder / "second", factors(tensors, 5.0, "proj", seed=2))
    return str(path), f"{path}+{first}", f"{path}+{second}"


def test_model_with_an_adapter(models: tuple[str, str, str]) -> None:
    path, first, second = models
    for model in (first, second):
        report = _parents(model, path)
        assert report.verdict == "derived" and report.parents == (path,)
        assert report.construction == Construction(kind="merged", ref=path, adapters=(model.removeprefix(path + "+"),))
        assert (report.answer.code, report.advice.code) == ("merged", "see-merge")
    alone = _parents(first)  # its base is the candidate
    assert [row.ref for row in alone.candidates] == [path] and alone.answer == _parents(first, path).answer
    assert (_parents(path, first).answer.code, _parents(first, second).answer.code) == ("base", "sibling")
    added = f"{first}+0.5*{second.rpartition('+')[2]}"
    assert _parents(added, first).construction == Construction(kind="merged", ref=first, adapters=(added.rpartition("+")[2],))


@pytest.mark.parametrize("order", [1, -1])
def test_compare(order: int, models: tuple[str, str, str]) -> None:
    path, first, _ = models
    *_, report = compare(CompareRequest(models=(path, first)[::order]), Access(local=True))
    assert isinstance(report, CompareReport)
    assert (report.relation.kind, report.relation.direction, report.relation.model) == ("derived", "shown", first)
    assert report.answer == report.parents.answer and report.answer.code == "merged"
