"""The parents form: as typed, as a request, as a link, and as a command."""

from dataclasses import dataclass

from analyzers import limits
from analyzers.parents.report import ParentsRequest
from components.forms.form import (
    READING,
    Cost,
    Query,
    ReadingForm,
    changed,
    command_line,
    link_to_reading,
    one_model,
    queried,
    references,
    validated,
)

ABOUT = (
    f"Which models the weights of a checkpoint come from, as JSON: for each of up to {limits.CANDIDATES} candidates (none: those that its "
    "model card names, and models of the library with tensors of the same shapes) the share of equal values, the distance and the cosine, "
    "each with its chance level; the weights of a merge, per layer and overall, with intervals; how much of that is proven; and a verdict."
)
# Of the endpoint, in this order.
PARAMETERS = ("model", "candidates", *READING)
COST = Cost("quick mode, a smaller budget, fewer candidates")
# One character over the limit, so that too long references are rejected rather than truncated.
_LONGEST = limits.REFERENCE_LENGTH + 1


@dataclass(frozen=True, slots=True)
class Form(ReadingForm):
    """The fields of the form, as typed. ``candidates`` names any number of checkpoints."""

    model: str = ""
    candidates: str = ""

    def request(self) -> ParentsRequest:
        """The validated request. Raises InvalidRequest with the sentence to show."""
        model = one_model(self.model, "Type or paste one model; its candidates go into the second field.")
        candidates = tuple(references(self.candidates, limits.CANDIDATES))
        return validated(ParentsRequest, self, READING, model=model, candidates=candidates)


def form(query: Query) -> Form:
    """The form described by a query: each ``candidate``, or ``candidates`` as in the API, adds one; of other keys the last value counts."""
    candidates = [text[:_LONGEST] for key, text in query if key in ("candidate", "candidates") and text.strip()]
    return Form(candidates=" ".join(candidates[: limits.CANDIDATES + 1]), **queried(query, Form, ("model", *READING)))


def permalink(request: ParentsRequest) -> str:
    """The query that asks for the same: ``?model=...&candidate=...&candidate=...&mode=...``."""
    return link_to_reading([("model", request.model), *(("candidate", name) for name in request.candidates)], request)


def command(request: ParentsRequest) -> str:
    """The shell command for the same analysis."""
    return command_line(["parents", request.model, *request.candidates], changed(request, READING))
