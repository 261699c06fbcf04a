"""Quick mode: estimates from a sample, with intervals that hold, within the budget, and said to be what they are."""

from pathlib import Path

import numpy as np
import pytest
import torch

from analyzers.comparison.sparsity import SparsityReport
from analyzers.core.records import Interval
from tests.dtype.checkpoints import write
from tests.sparsity.checkpoints import Tensors, model
from tests.sparsity.oracle_comparison import compare

BUDGET = 600_000
SEEDS = 100


def base() -> Tensors:
    """Make a model of 5.5 MB in bf16, of which the budget is a ninth."""
    return model(layers=10, width=256)


def tuned(before: Tensors, kind: str) -> Tensors:
    """The base with an update of one kind: some values double."""
    rng = np.random.default_rng(1)
    whole = [name for name in before if "up_proj" in name][3:5]
    after = {}
    for name, tensor in before.items():
        shape = tuple(tensor.shape)
        if kind == "two_matrices":
            mask = np.full(shape, name in whole)
        elif kind == "rows_1e-2":
            mask = np.broadcast_to(rng.random((*shape[:-1], 1)) < 1e-2, shape) & (len(shape) > 1)
        else:
            mask = rng.random(shape) < float(kind.removeprefix("scattered_"))
        after[name] = torch.where(torch.from_numpy(mask.copy()), tensor * 2, tensor)
    return after


KINDS = ("rows_1e-2", "two_matrices", "scattered_1e-4", "scattered_0.3")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder, before = tmp_path_factory.mktemp("quick"), base()
    return [write(folder / "base", before), *(write(folder / kind, tuned(before, kind)) for kind in KINDS)]


@pytest.fixture(scope="module")
def truth(folders: list[Path]) -> SparsityReport:
    return compare(*folders)


def test_intervals_hold_the_exact_shares(folders: list[Path], truth: SparsityReport) -> None:
    """All of it at work: files, alignment, sample, counts, intervals; and the report says the same everywhere."""
    inside = []
    roles = []
    for seed in range(2):
        report = compare(*folders, mode="quick", budget=BUDGET, seed=seed)
        assert report.bytes_read <= BUDGET * len(folders) and report.values_compared < truth.values_compared / 7
        assert report.interval == report.trajectory[-1].interval
        for found, exact in zip(report.trajectory, truth.trajectory, strict=True):
            assert found.interval is not None and found.sparsity == found.interval.estimate and exact.sparsity is not None
            assert 0 <= found.interval.low <= found.interval.estimate <= found.interval.high <= 1
            inside.append(found.interval.low <= exact.sparsity <= found.interval.high)
        for role, row in truth.roles.items():
            interval, share = report.roles[role].interval, row.sparsity
            assert share is not None and interval is not None and report.roles[role].sparsity == pytest.approx(interval.estimate, rel=1e-12)
            roles.append(interval.low <= share <= interval.high)
        probe, swallowed = report.probe.interval, report.swallowed.interval
        assert truth.probe.interval is None and probe is not None and swallowed is not None and probe.low <= probe.estimate <= probe.high
        assert report.probe.sparsity == pytest.approx(probe.estimate, rel=1e-12)
        assert swallowed.low == swallowed.estimate == 0 < swallowed.high
    assert sum(inside) >= 0.9 * len(inside)
    assert sum(roles) >= 0.9 * len(roles)


def test_counts_are_what_was_seen(folders: list[Path], truth: SparsityReport) -> None:
    report = compare(folders[0], folders[-1], mode="quick", budget=BUDGET)
    assert report.num_changed + report.num_unchanged == report.values_compared == sum(row.values_read for row in report.tensors)
    assert report.total_parameters == truth.total_parameters
    assert report.magnitudes.absolute.count == report.values_compared
    assert sum(each.count for each in report.ulp_histogram) == report.values_compared
    assert report.magnitudes.relative.p90 == truth.magnitudes.relative.p90 == 0.5
    assert report.magnitudes.absolute.changed_only.median == pytest.approx(truth.magnitudes.absolute.changed_only.median, rel=0.05)
    for row, exact in zip(report.tensors, truth.tensors, strict=True):
        assert row.name == exact.name and row.num_changed <= exact.num_changed
        assert row.changed_rows is row.changed_columns is None
    assert report.notes[0].code == "sample" and report.sampled
    assert report.interval is not None and report.answer.values["changed"] == Interval(
        estimate=1 - report.interval.estimate, low=1 - report.interval.high, high=1 - report.interval.low
    )


def test_a_budget_for_everything_is_exact(folders: list[Path], truth: SparsityReport) -> None:
    report = compare(*folders, mode="quick")
    assert report.interval is None and report.probe.interval is None
    assert (report.num_changed, report.sparsity, report.tensors) == (truth.num_changed, truth.sparsity, truth.tensors)
    assert report.overlap == truth.overlap and report.id != truth.id
    assert not report.notes and not report.sampled


def test_overlaps_are_weighed_as_shares_are(folders: list[Path], truth: SparsityReport) -> None:
    """Strata are read in unequal parts: a role's changes must not weigh more for being read more closely."""
    found = compare(*folders, mode="quick", budget=BUDGET)
    for one, exact in zip(found.overlap, truth.overlap, strict=True):
        assert (one.first, one.second) == (exact.first, exact.second)
        if exact.second == KINDS.index("scattered_0.3"):
            assert one.independent == pytest.approx(exact.independent, rel=0.5, abs=1e-3)
            assert one.jaccard == pytest.approx(exact.jaccard, abs=0.05)


def test_sizes_are_weighed_by_stratum(tmp_path: Path) -> None:
    """Norms are read whole and matrices in part: norms that moved a thousand times as far must not weigh more for it."""
    rng, before = np.random.default_rng(0), base()
    steps = {name: 1e-4 * (1000 if "norm" in name else 1) for name in before}
    start = {name: tensor.float() for name, tensor in before.items()}
    after = {name: t + steps[name] * torch.from_numpy(rng.standard_normal(tuple(t.shape)).astype(np.float32)) for name, t in start.items()}
    folders = write(tmp_path / "a", start), write(tmp_path / "b", after)
    whole = compare(*folders)
    found = compare(*folders, mode="quick", budget=BUDGET)
    sizes, exact = found.magnitudes.absolute, whole.magnitudes.absolute
    assert sizes.count == found.values_compared
    for name in ("mean", "p25", "p50", "p75", "p90", "p99"):
        assert getattr(sizes, name) == pytest.approx(getattr(exact, name), rel=0.2), name
    assert found.energy[1].energy == pytest.approx(whole.energy[1].energy, rel=0.1)
    assert found.magnitudes.relative.below_2_minus_8 == pytest.approx(whole.magnitudes.relative.below_2_minus_8, abs=0.02)
    for one, two in zip(found.ulp_histogram[:3], whole.ulp_histogram[:3], strict=True):
        assert one.share == pytest.approx(two.share, rel=0.1)
    assert all(row.std is None for role, row in found.roles.items() if role != "norm") and found.roles["norm"].std is not None
    for row, truth_row in zip(found.layers, whole.layers, strict=True):
        assert row.interval is not None and truth_row.sparsity is not None and truth_row.interval is None
        assert row.interval.low <= truth_row.sparsity <= row.interval.high
