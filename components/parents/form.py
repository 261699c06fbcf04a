"""Turns the parents form into a request."""

from collections.abc import Generator

from analyzers.checkpoints import Access
from analyzers.core import limits
from analyzers.core.request import Progress
from analyzers.parents.report import ParentsRequest
from components.forms.form import Cost, Query, Typed, as_models, one_model, queried, references, revised, typed, validated
from components.parents.suggestions import suggested

ABOUT = (
    f"Which models the weights of a checkpoint come from, as JSON: for each of up to {limits.CANDIDATES} candidates (none: those that its "
    "model card names, and models of the library with tensors of the same shapes) the share of equal values, the distance and the cosine, "
    "each with its chance level; the weights of a merge, per layer and overall, with intervals; how much of that is proven; and a verdict."
)
COST = Cost("quick mode, a smaller budget, fewer candidates")


def request(form: Typed) -> ParentsRequest:
    """Validate what is typed as a request; ``candidates`` may name several. Raises InvalidRequest with the sentence to show."""
    model = one_model(form.get("model"), "Type or paste one model; its candidates go into the second field.")
    candidates = tuple(references(typed(form.get("candidates")), limits.CANDIDATES))
    return validated(ParentsRequest, form, model=model, candidates=candidates)


def filled(query: Query) -> Typed:
    """Return the values that a query fills in: each ``candidate``, or ``candidates`` as in the API, adds one."""
    known = queried(query, ParentsRequest)
    return known | {"candidates": " ".join(known["candidates"])}


def complete(request: ParentsRequest, access: Access) -> Generator[Progress, None, ParentsRequest]:
    """Add candidates from the library to ``request`` if it names none."""
    if request.candidates:
        return request
    return request.model_copy(update={"suggested": tuple((yield from suggested(request.model, access, request.subfolder)))})


def moved(query: Query) -> Query:
    """Return the query of the page Compare with the same checkpoints: the candidates, then the model."""
    return as_models(revised(query), "candidate", "candidates", "model")
