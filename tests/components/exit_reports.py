"""Exit reports of the tiny sample on a few tokens, and one with hostile text in every place that comes from outside."""

from functools import cache
from typing import Any

from analyzers.exit_feedback import ExitReport, ExitRequest, analyze
from analyzers.exit_feedback.words import WORDS
from tests.components.dtype_reports import HOSTILE, of_model

_SMALL = {"samples": 3, "tokens": 40, "seeds": 2, "layers": "0"}


def exit_request() -> ExitRequest:
    """Return the request of `exit_report`, without running it."""
    return ExitRequest.model_validate({"model": "sample:tiny-bf16", **_SMALL})


def exit_report(**asked: Any) -> ExitReport:
    """Return the report on a few tokens, or with other options. Cached by request."""
    return _report(tuple(sorted({**_SMALL, **asked}.items())))


def at_a_glance() -> ExitReport:
    """Return a report without random codes, without a sweep, and on the last layer only."""
    return exit_report(methods=("parallel", "span", "svd"), sweep=False, layers="final")


def hostile_exit_report() -> ExitReport:
    """Return a report with HTML, an override of the reading direction and a very long word in all outside text, and in every name."""
    found = of_model(HOSTILE, exit_report())
    nasty = f"{HOSTILE}\u202e{'x' * 5_000}"
    inputs = found.inputs.model_copy(update={"source": HOSTILE, "commit": HOSTILE, "preview": nasty})
    methods = {f"{nasty}{name}" if name == "span" else name: method for name, method in found.methods.items()}
    named = {"method": nasty}
    cost = found.cost.model_copy(update={"rows": tuple(row.model_copy(update=named) for row in found.cost.rows)})
    sweep = tuple(row.model_copy(update=named) if row.method == "span" else row for row in found.sweep)
    layers = tuple(row.model_copy(update={"method": f"{nasty}span"}) if row.method == "span" else row for row in found.layers)
    parts = {"inputs": inputs, "methods": methods, "cost": cost, "sweep": sweep, "layers": layers}
    note = WORDS.note("narrow", dtype=nasty)
    return found.model_copy(
        update={**parts, "answer": WORDS.note("ceilings", signal=nasty, cosine=0.5), "notes": (note,), "dtype": HOSTILE}
    )


@cache
def _report(asked: tuple[tuple[str, Any], ...]) -> ExitReport:
    *_, last = analyze(ExitRequest(model="sample:tiny-bf16", **dict(asked)))
    assert isinstance(last, ExitReport)
    return last
