"""Running dtype detection on local folders and samples."""

import json
from pathlib import Path
from typing import Any, NoReturn

from analyzers.base import Progress
from analyzers.checkpoints import Access
from analyzers.dtype_detection import DtypeReport, DtypeRequest, analyze


def inspect(model: str | Path, **options: Any) -> DtypeReport:
    """The report on one model; also checks what holds of every run: progress grows, and the report comes once and last."""
    items = list(analyze(DtypeRequest(model=str(model), **options), Access(local=True)))
    *steps, report = items
    assert isinstance(report, DtypeReport)
    assert all(isinstance(step, Progress) for step in steps)
    done = [step.done for step in steps if isinstance(step, Progress)]
    assert done == sorted(done) and report.bytes_read == done[-1]
    return report


def exact(model: str | Path, **options: Any) -> DtypeReport:
    """In exact mode."""
    return inspect(model, mode="exact", **options)


def _refuse(name: str) -> NoReturn:
    raise AssertionError(f"JSON holds {name}")


def parsed(report: DtypeReport) -> dict[str, Any]:
    """The report's JSON, parsed strictly: NaN and infinities are no JSON."""
    value = json.loads(report.model_dump_json(), parse_constant=_refuse)
    assert isinstance(value, dict)
    return value


def steady(report: DtypeReport) -> dict[str, Any]:
    """What must be the same each time: all but timing and environment."""
    return {name: value for name, value in parsed(report).items() if name not in ("timing", "environment")}
