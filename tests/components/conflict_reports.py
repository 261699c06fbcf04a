"""Conflict reports of the tiny sample on a few built-in pairs, and one with hostile text in every place that comes from outside."""

from functools import cache
from typing import Any

from analyzers.gradient_conflict import ConflictReport, ConflictRequest, TextPair, analyze
from analyzers.language_models.builtin_text import builtin_pairs
from analyzers.language_models.words import WORDS as REMARKS
from tests.components.dtype_reports import HOSTILE, of_model

PAIRS = tuple(TextPair(instruction=each.instruction, input=each.input, output=each.output) for each in builtin_pairs()[:48:6])


def conflict_report(**asked: Any) -> ConflictReport:
    """Return the report on eight pairs, or with other options. Cached by request."""
    return _report(tuple(sorted({"pairs": PAIRS, **asked}.items())))


def top_k() -> ConflictReport:
    """Return a report on a top-k FFN in all layers next to the original."""
    return conflict_report(ffn="topk", topk_layers="all")


def hostile_conflict_report() -> ConflictReport:
    """Return a report with HTML, an override of the reading direction and a very long word wherever text comes from outside."""
    found = of_model(HOSTILE, top_k())
    nasty = f"{HOSTILE}\u202e{'x' * 5_000}"
    samples = tuple(each.model_copy(update={"text": f"Say it.\n{number} {nasty}"}) for number, each in enumerate(found.samples))
    data = found.data.model_copy(update={"source": HOSTILE, "commit": HOSTILE})
    return found.model_copy(
        update={
            "samples": samples,
            "data": data,
            "notes": (REMARKS.note("few-samples", source=HOSTILE, samples=1, requested=2),),
            "dtype": HOSTILE,
        }
    )


@cache
def _report(asked: tuple[tuple[str, Any], ...]) -> ConflictReport:
    *_, last = analyze(ConflictRequest(model="sample:tiny-bf16", **dict(asked)))
    assert isinstance(last, ConflictReport)
    return last
