"""Runs dtype detection on local folders and samples."""

import json
from pathlib import Path
from typing import Any, NoReturn

from analyzers.checkpoints import Access
from analyzers.core.request import Progress
from analyzers.dtype import DtypeReport, DtypeRequest, analyze


def inspect(model: str | Path, **options: Any) -> DtypeReport:
    """Return the report on one model, and check that progress grows and that the report is the last item."""
    items = list(analyze(DtypeRequest(model=str(model), **options), Access(local=True)))
    *steps, report = items
    assert isinstance(report, DtypeReport)
    assert all(isinstance(step, Progress) for step in steps)
    done = [step.done for step in steps if isinstance(step, Progress)]
    assert done == sorted(done) and report.bytes_read == done[-1]
    return report


def exact(model: str | Path, **options: Any) -> DtypeReport:
    """Return the report of exact mode."""
    return inspect(model, mode="exact", **options)


def _refuse(name: str) -> NoReturn:
    raise AssertionError(f"JSON holds {name}")


def parsed(report: DtypeReport) -> dict[str, Any]:
    """Parse the report's JSON strictly, without NaN and infinities."""
    value = json.loads(report.model_dump_json(), parse_constant=_refuse)
    assert isinstance(value, dict)
    return value


def steady(report: DtypeReport) -> dict[str, Any]:
    """Return the deterministic part of the report: all but timing, environment, and the digits that the order of float sums decides."""
    parsed(report)
    return rounded(report.model_dump_json(exclude={"timing", "environment"}))


def rounded(text: str) -> dict[str, Any]:
    """Parse JSON with numbers to ten digits."""
    value = json.loads(text, parse_float=lambda number: float(f"{float(number):.10g}"))
    assert isinstance(value, dict)
    return value
