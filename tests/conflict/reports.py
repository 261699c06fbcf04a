"""Conflict reports of the tiny sample on a few samples of the built-in text."""

from functools import cache
from typing import Any

from analyzers.conflict import ConflictReport, ConflictRequest, analyze

SAMPLES = 8


def conflict_report(**asked: Any) -> ConflictReport:
    """Return the report on eight samples, or with other options. Cached by request."""
    return _report(tuple(sorted({"samples": SAMPLES, **asked}.items())))


@cache
def _report(asked: tuple[tuple[str, Any], ...]) -> ConflictReport:
    *_, last = analyze(ConflictRequest(model="sample:tiny-bf16", **dict(asked)))
    assert isinstance(last, ConflictReport)
    return last
