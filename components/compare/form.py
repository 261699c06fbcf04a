"""Turns the compare form into a request."""

from collections.abc import Generator

from analyzers.checkpoints import Access
from analyzers.compare.report import CompareRequest
from analyzers.core import limits
from analyzers.core.errors import InvalidRequest
from analyzers.core.request import Progress
from components.forms.form import Cost, Query, Typed, queried, references, validated
from components.parents.suggestions import suggested

ABOUT = (
    f"What up to {limits.CANDIDATES} checkpoints are to each other, as JSON: a relation with a sentence (the same weights in another form, "
    "a fine-tune with its share of changed weights, a merge with its recipe, a stack of layers, or unrelated), the full report of parents "
    "on the model that comes from the others, and that of sparsity on what changed."
)
COST = Cost("quick mode, a smaller budget, fewer models")


def request(form: Typed) -> CompareRequest:
    """Validate what is typed as a request; each text of ``models`` may name several. Raises InvalidRequest with the sentence to show."""
    models = tuple(references(form.get("models", ()), limits.CANDIDATES))
    if not models:
        raise InvalidRequest("Type or paste two model ids, such as org/name or org/name@revision, or pick one of the examples.")
    return validated(CompareRequest, form, models=models)


def filled(query: Query) -> Typed:
    """Return the values that a query fills in: each ``model`` adds a checkpoint."""
    return queried(query, CompareRequest)


def complete(request: CompareRequest, access: Access) -> Generator[Progress, None, CompareRequest]:
    """Add models of the library to ``request`` if it names a single model."""
    if len(request.models) > 1:
        return request
    return request.model_copy(update={"suggested": tuple((yield from suggested(request.models[0], access, request.subfolder)))})
