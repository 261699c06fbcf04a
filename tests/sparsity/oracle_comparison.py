"""Runs update sparsity on local folders and samples, and compares reports with the oracle."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analyzers.checkpoints import Access
from analyzers.comparison.sparsity import SparsityReport, SparsityRequest, analyze
from analyzers.comparison.sparsity.rows import Sizes
from analyzers.core.errors import MantissaError
from analyzers.core.request import Progress
from tests.sparsity.oracle import Expected, Floats


def compare(base: str | Path, *tuned: str | Path, **options: Any) -> SparsityReport:
    """Return the report, by default of exact mode.

    Checks that progress grows, that the report is the last item, that its sums add up, and that its JSON can be read back.
    """
    request = SparsityRequest(base=str(base), tuned=tuple(map(str, tuned)), **{"mode": "exact"} | options)
    *steps, report = list(analyze(request, Access(local=True)))
    assert isinstance(report, SparsityReport)
    assert all(isinstance(step, Progress) for step in steps)
    done = [step.done for step in steps if isinstance(step, Progress)]
    assert done == sorted(done) and report.bytes_read == done[-1]
    assert report.num_changed + report.num_unchanged == report.values_compared <= report.total_parameters
    for rows in (report.roles.values(), report.layers, report.every("tensors")):
        assert sum(row.parameters for row in rows) == report.total_parameters
        assert sum(row.num_changed for row in rows) == report.num_changed
    assert sum(each.count for each in report.ulp_histogram) == report.values_compared - report.magnitudes.nonfinite
    assert all(each.low < each.high for each in report.magnitudes.relative.histogram)
    assert len(report.trajectory) == (len(tuned) if len(tuned) > 1 else 0)
    assert SparsityReport.model_validate_json(report.model_dump_json()).model_dump() == report.model_dump()
    return report


def refused(base: str | Path, *tuned: str | Path, **options: Any) -> str:
    """Return the sentence with which a comparison is refused."""
    with pytest.raises(MantissaError) as caught:
        compare(base, *tuned, **options)
    said = str(caught.value)
    assert said.isprintable() and len(said) < 600
    return said


def agree(report: SparsityReport, oracle: Expected) -> None:
    """Assert that counts are equal, sums equal up to rounding, and percentiles within 1%."""
    assert report.values_compared == report.total_parameters == oracle.values
    assert report.num_changed == oracle.changed
    assert report.probe.num_changed == oracle.probe
    assert report.swallowed.count == oracle.differ - oracle.changed
    assert report.magnitudes.nonfinite == oracle.nonfinite
    if oracle.values:
        assert report.sparsity == (oracle.values - oracle.changed) / oracle.values
        assert report.update_fraction == oracle.changed / oracle.values
        assert report.probe.sparsity == pytest.approx(1 - oracle.probe / oracle.values, rel=1e-12)
        assert report.swallowed.share == pytest.approx((oracle.differ - oracle.changed) / oracle.values, rel=1e-12)
    sizes = report.magnitudes
    for found, truth in ((sizes.absolute, oracle.absolute), (sizes.relative, oracle.relative)):
        _like(found, truth)
        _like(found.changed_only, truth[oracle.is_changed])
    assert sum(each.count for each in sizes.relative.histogram) == np.count_nonzero(oracle.relative)
    assert sum(each.changed for each in sizes.relative.histogram) == oracle.is_changed.sum()
    for each in sizes.relative.histogram:  # the division in fp32 may round differently
        inside = (oracle.relative >= each.low * (1 - 1e-6)) & (oracle.relative < each.high * (1 + 1e-6))
        assert each.count <= inside.sum()
    of_changed = oracle.relative[oracle.is_changed]
    for shares, truth in ((sizes.relative, oracle.relative), (sizes.relative.changed_only, of_changed)):
        if truth.size:
            assert shares.below_2_minus_8 == (truth < 2.0**-8).mean()
            assert shares.below_2_minus_7 == (truth < 2.0**-7).mean()
    for step in report.ulp_histogram:
        assert step.count == ((oracle.steps >= step.low) & (oracle.steps <= step.high)).sum()
    squares = np.sort(oracle.absolute**2)[::-1]
    for energy in report.energy:
        if squares.sum() == 0:
            assert energy.energy is None
        else:
            top = squares[: int(np.ceil(energy.top * squares.size))].sum() / squares.sum()
            assert energy.energy == pytest.approx(top, rel=0.01)


def _like(found: Sizes, truth: Floats) -> None:
    assert found.count == truth.size
    if truth.size == 0:
        assert found.mean is found.std is found.min is found.max is found.median is None
        return
    assert found.mean == pytest.approx(truth.mean(), rel=1e-9)
    assert found.std == pytest.approx(truth.std(), rel=1e-6, abs=1e-9 * truth.max(initial=0.0))
    assert found.max == truth.max()
    assert found.min == pytest.approx(truth.min(), rel=0.01, abs=0)
    assert found.median == found.p50
    for share in (25, 50, 75, 90, 99):
        assert getattr(found, f"p{share}") == pytest.approx(np.quantile(truth, share / 100), rel=0.01)
