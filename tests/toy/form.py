"""Turns the form of the toy analyzer into a request."""

from components.forms.form import Cost, Query, Typed, one_model, queried, validated
from tests.toy import ToyRequest

ABOUT = "How many tensors a checkpoint has, as JSON."
COST = Cost("quick mode")


def request(form: Typed) -> ToyRequest:
    """Validate what is typed as a request."""
    return validated(ToyRequest, form, model=one_model(form.get("model"), "One model at a time."))


def filled(query: Query) -> Typed:
    """Return the values that a query fills in."""
    return queried(query, ToyRequest)
