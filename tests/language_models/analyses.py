"""Runs the three analyses of running models on random tokens, and compares their reports without what differs from run to run."""

import random
from typing import Any

from analyzers import conflict, exit, precision
from analyzers.checkpoints import Access
from analyzers.conflict.analyze import analyze as conflict_analysis
from analyzers.core.report import Report
from analyzers.exit.analyze import analyze as exit_analysis
from analyzers.precision.analyze import analyze as precision_analysis

ANALYSES: dict[str, Any] = {"conflict": conflict_analysis, "precision": precision_analysis, "exit": exit_analysis}
_REQUESTS: dict[str, Any] = {
    "conflict": conflict.ConflictRequest,
    "precision": precision.PrecisionRequest,
    "exit": exit.ExitRequest,
}
_OPTIONS: dict[str, dict[str, Any]] = {"exit": {"sweep": False, "seeds": 2}, "precision": {"inside": True}}
_RUN_TO_RUN = ("timing", "environment", "notes", "advice", "cost", "seconds", "peak_bytes")


def request(kind: str, model: str, **options: Any) -> Any:
    """Make a request on samples of equal and unequal length; precision accepts only equal lengths."""
    numbers = random.Random(5)
    lengths = [40, 40] if kind == "precision" else [40, 25, 33, 12]
    token_ids = tuple(tuple(numbers.randrange(4, 60) for _ in range(length)) for length in lengths)
    return _REQUESTS[kind](model=model, token_ids=token_ids, **_OPTIONS.get(kind, {}) | options)


def report(kind: str, request: Any) -> Any:
    """Run the request and return the report."""
    for item in ANALYSES[kind](request, Access(local=True)):
        found = item
    return found


def lasting(report: Report) -> Any:
    """Return every value of a report except times, notes and the name of the model."""

    def kept(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: kept(each) for name, each in value.items() if name not in _RUN_TO_RUN}
        return [kept(each) for each in value] if isinstance(value, list) else value

    return kept(report.model_dump(mode="json"))
