"""Estimates how long a run will take before it begins, from the newest stored run of the same analyzer on the same model."""

from typing import Any

from analyzers import analyzer_of
from analyzers.core.errors import MantissaError
from analyzers.core.request import Request
from components.site import stored_results
from components.text import numbers


def expected_duration(request: Request) -> str:
    """Return ``about 40 s, as the last run of this model``, or "" if no run of the model is stored. Never waits for the Hub."""
    analyzer = analyzer_of(request)
    model = str(getattr(request, "model", "")).partition("@")[0]
    try:
        last: Any = stored_results.newest(analyzer.name, model) if analyzer.runs_model and model else None
    except MantissaError:  # the run itself reports the error
        return ""
    ratio = _ratio(request, last.request) if last is not None else None
    return f"about {numbers.duration(ratio * last.timing.seconds)}, as the last run of this model" if ratio is not None else ""


def _ratio(request: Request, last: Request) -> float | None:
    """Return the expected duration of ``request`` divided by that of ``last``, from their numbers of tokens."""
    tokens = analyzer_of(request).component("form").COST.tokens
    return tokens(request) / tokens(last) if tokens(last) else None
