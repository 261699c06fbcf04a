"""Turns the check form into a request."""

from analyzers.check.report import CheckRequest
from components.forms.form import Cost, Query, Typed, one_model, queried, validated

ABOUT = (
    "Check whether an upload loads and is what it claims to be, as JSON: findings, each with its level (error, warning, info), what to "
    "do about it, the bytes that would save, and the tensors; with a base also what is missing, of another shape or unchanged. "
    "Reads every value."
)
COST = Cost("the check without a base")
_ONE = "Type or paste one {}: org/name or org/name@revision, or a sample."


def request(form: Typed) -> CheckRequest:
    """Validate what is typed as a request. Raises InvalidRequest with the sentence to show."""
    model = one_model(form.get("model"), _ONE.format("model"))
    base = one_model(form["base"], _ONE.format("base")) if (form.get("base") or "").strip() else None
    return validated(CheckRequest, form, model=model, base=base)


def filled(query: Query) -> Typed:
    """Return the values that a query fills in."""
    return queried(query, CheckRequest)
