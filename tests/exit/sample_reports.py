"""Runs the analysis of a sample in tests."""

from functools import cache
from typing import Any

from analyzers.checkpoints import Access
from analyzers.exit import ExitReport, ExitRequest, analyze

MODEL = "sample:tiny-bf16"
SMALL: dict[str, Any] = {"samples": 4, "tokens": 48, "seeds": 2, "sweep": False}


def report(**asked: Any) -> ExitReport:
    """Return the report of a small request, with other options."""
    *_, last = analyze(ExitRequest(**{"model": MODEL, **SMALL, **asked}), Access(local=True))
    assert isinstance(last, ExitReport)
    return last


@cache
def standard() -> ExitReport:
    """Return a small report with everything: all methods, a sweep."""
    return report(sweep=True, seeds=4, k=6)
