"""BASE+ADAPTER is compared as its merged weights; alone, with its base."""

import pytest

from analyzers.checkpoints import Access
from analyzers.comparison.compare import CompareReport, CompareRequest
from analyzers.comparison.compare import analyze as compare
from analyzers.comparison.parents import ParentsReport, ParentsRequest, analyze
from tests.sparsity.adapters import base, factors, write_adapter


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A base, and the base with an adapter."""
    path, tensors = base(folder := tmp_path_factory.mktemp("models"))
    return str(path), f"{path}+{write_adapter(folder / 'first', factors(tensors, 1e-3, 'q_proj'))}"


def test_the_base_is_the_candidate(models: tuple[str, str]) -> None:
    *_, report = analyze(ParentsRequest(model=models[1]), Access(local=True))
    assert isinstance(report, ParentsReport)
    assert report.verdict == "derived" and report.parents == (models[0],) == tuple(row.ref for row in report.candidates)


@pytest.mark.parametrize("order", [1, -1])
def test_compare(order: int, models: tuple[str, str]) -> None:
    *_, report = compare(CompareRequest(models=models[::order]), Access(local=True))
    assert isinstance(report, CompareReport)
    assert (report.relation.kind, report.relation.direction, report.relation.model) == ("derived", "shown", models[1])
    assert report.sparsity is not None and report.sparsity.adapter is not None and report.answer == report.sparsity.answer
