"""Turns the exit form into a request."""

from analyzers.core.errors import InvalidRequest
from analyzers.exit_feedback import ExitRequest
from analyzers.exit_feedback.signals import METHODS
from components.forms import form as forms
from components.forms.form import Query, Typed

ABOUT = (
    "How close gradients without backpropagation at the LM head are to the exact one, as JSON: for each signal the cosine per token "
    "with percentiles and by loss, norm ratio, best scale, energy along the hidden state before and after the final norm, over ranks, "
    "k, anchors, seeds and layers, and time and memory."
)
# Number of layers of the logit lens, and of points of a sweep (settings times seeds), for estimates of cost.
_LAYERS, _SWEPT = 6, 21


def request(form: Typed) -> ExitRequest:
    """Validate what is typed as a request. Raises InvalidRequest with the sentence to show."""
    if (unknown := next((name for name in form.get("methods", ()) if name not in METHODS), None)) is not None:
        raise InvalidRequest(f"{unknown[: forms.SHOWN]!r} is not a signal: choose among {', '.join(METHODS)}.")
    model = forms.one_model(form.get("model"), "Signals are measured in one model at a time: name one.")
    return forms.validated(ExitRequest, form, model=model, data=forms.data(form))


def filled(query: Query) -> Typed:
    """Return the values that a query fills in."""
    return forms.queried(query, ExitRequest)


def _tokens(request: ExitRequest) -> int:
    """Estimate the cost of a run in tokens through the model.

    Each signal is a product with the head, which is a part of the model, for every layer, setting and seed.
    """
    points = len(request.methods) * (_LAYERS + request.seeds + (_SWEPT if request.sweep else 0))
    return request.samples * request.sequence_length + request.tokens * points


COST = forms.Cost("fewer signals, seeds or tokens, no sweep, a smaller model", _tokens)
