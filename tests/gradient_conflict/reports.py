"""Conflict reports of the tiny sample on a few built-in pairs."""

from functools import cache
from typing import Any

from analyzers.gradient_conflict import ConflictReport, ConflictRequest, TextPair, analyze
from analyzers.language_models.builtin_text import builtin_pairs

PAIRS = tuple(TextPair(instruction=each.instruction, input=each.input, output=each.output) for each in builtin_pairs()[:48:6])


def conflict_report(**asked: Any) -> ConflictReport:
    """Return the report on eight pairs, or with other options. Cached by request."""
    return _report(tuple(sorted({"pairs": PAIRS, **asked}.items())))


@cache
def _report(asked: tuple[tuple[str, Any], ...]) -> ConflictReport:
    *_, last = analyze(ConflictRequest(model="sample:tiny-bf16", **dict(asked)))
    assert isinstance(last, ConflictReport)
    return last
