"""Turns the sparsity form into a request."""

from analyzers.core import limits
from analyzers.core.errors import InvalidRequest
from analyzers.update_sparsity.report import SparsityRequest
from components.forms.form import Cost, Query, Typed, as_models, queried, references, typed, validated

ABOUT = (
    f"What changed from a base checkpoint to a tuned one, or to each of up to {limits.TRAJECTORY} in the order of the training, as JSON: "
    "the fraction of weights that are unchanged in bf16, by layer, role and tensor, how large the updates are, and what could not be "
    "compared."
)
COST = Cost("quick mode, a smaller budget, fewer models")


def request(form: Typed) -> SparsityRequest:
    """Validate what is typed as a request; each text of ``tuned`` may name several. Raises InvalidRequest with the sentence to show."""
    base, tuned = typed(form.get("base")).strip(), tuple(references(form.get("tuned", ()), limits.TRAJECTORY))
    if not base or not tuned:
        missing = "the checkpoint it was tuned to" if base else "the base checkpoint"
        raise InvalidRequest(f"Type or paste {missing}, such as org/name or org/name@revision, or pick one of the examples.")
    return validated(SparsityRequest, form, base=base, tuned=tuned)


def filled(query: Query) -> Typed:
    """Return the values that a query fills in: each ``tuned`` adds a checkpoint."""
    return queried(query, SparsityRequest)


def moved(query: Query) -> Query:
    """Return the query of the page Compare with the same checkpoints: the base, then the tuned ones."""
    return as_models(query, "base", "tuned")
