"""Reports of exit feedback, for reading."""

from functools import partial
from typing import Any

from analyzers.core.errors import MantissaError
from analyzers.core.report import Report
from analyzers.exit import ExitReport, ExitRequest, analyze
from analyzers.exit.answer import advice, answer
from analyzers.exit.report import closest
from analyzers.exit.words import WORDS
from tests.words.hostile import HOSTILE

# Seconds vary from run to run: the reports have these, and the answers that follow from them.
_TIME, _MEMORY = 0.002, 400_000


def _timed(found: ExitReport, factor: float = 2.0, **changes: Any) -> ExitReport:
    """Return a report whose signals take ``factor`` times as long as the exact gradient."""
    rows = tuple(
        row.model_copy(
            update={
                "seconds": _TIME if row.method == "exact" else factor * _TIME,
                "peak_bytes": _MEMORY,
                "time_ratio": 1.0 if row.method == "exact" else factor,
                "memory_ratio": 1.0,
            }
        )
        for row in found.cost.rows
    )
    methods = changes.pop("methods", found.methods)
    decided = {"answer": answer(methods), "advice": advice(methods, rows, found.checkpoint.ref)}
    cost = found.cost.model_copy(update={"rows": rows, "exact_form": "whole"})
    return found.model_copy(update={"methods": methods, "cost": cost, **decided, **changes})


def reports() -> dict[str, Report | MantissaError]:
    """Return a full report, one of few signals, one without a gradient, one in bf16 with every note, and one with hostile names."""
    *_, found = analyze(ExitRequest(model="sample:tiny-bf16", samples=3, tokens=40, seeds=2))
    assert isinstance(found, ExitReport)
    name = closest(found.methods)
    assert name is not None
    best = found.methods[name]
    weak = {each: method for each, method in found.methods.items() if each in ("dense", "hybrid")}
    inside = best.before_norm.model_copy(update={"cosine": found.methods["dense"].cosine})
    at_head = {name: best.model_copy(update={"before_norm": inside})}
    none = {name: best.model_copy(update={"cosine": None})}
    every = (
        WORDS.note("measured-part", measured=48, answers=81),
        WORDS.note("padded-head", rows=88, tokens=512),
        WORDS.note("certain", tokens=1),
        WORDS.note("wide-span", anchors=256, width=64),
        WORDS.note("narrow", dtype="bfloat16"),
        WORDS.note("one-seed"),
    )
    timed = partial(_timed, found)
    return {
        "every signal": timed(),
        "a faster signal, and every note": timed(0.5, notes=every),
        "a signal as slow as the exact gradient": timed(1.02),
        "good at the head only": timed(0.5, methods=at_head),
        "random codes alone": timed(methods=weak),
        "a ceiling alone": timed(methods={"svd": found.methods["svd"]}),
        "no gradient": timed(methods=none),
        "hostile names": timed(
            checkpoint=found.checkpoint.model_copy(update={"ref": HOSTILE}),
            inputs=found.inputs.model_copy(update={"source": HOSTILE, "preview": HOSTILE}),
        ),
    }
