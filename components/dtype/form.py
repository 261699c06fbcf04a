"""Turns the passport form into requests, and a request into a link."""

from analyzers.core import limits
from analyzers.core.errors import InvalidRequest
from analyzers.dtype_detection import DtypeRequest
from components.forms import form as forms
from components.forms.form import Query, Typed

ABOUT = (
    "The precision passport of a checkpoint as JSON: how it is stored, which formats its values provably passed through, in which "
    "precision it was probably trained, and whether its weights fit fp16."
)
COST = forms.Cost("quick mode, a smaller budget, fewer models")


def request(form: Typed) -> DtypeRequest:
    """Validate what is typed as a request for one model. Raises InvalidRequest with the sentence to show."""
    if not (model := forms.typed(form.get("model")).strip()):
        raise InvalidRequest("Type or paste a model id such as google-t5/t5-small, or pick one of the samples.")
    return forms.validated(DtypeRequest, form, model=model)


def requests(form: Typed) -> list[DtypeRequest]:
    """Make a request per model named, all with the same options. Raises InvalidRequest."""
    return [request({**form, "model": model}) for model in models(forms.typed(form.get("model"))) or [""]]


def models(text: str) -> list[str]:
    """Return the model ids in ``text``, without duplicates. Raises InvalidRequest if there are too many."""
    named = list(dict.fromkeys(forms.references(text, limits.MODELS)))
    if len(named) > limits.MODELS:
        raise InvalidRequest(f"One run takes at most {limits.MODELS} models, not {len(named):,}: use the command line.")
    return named


def filled(query: Query) -> Typed:
    """Return the values that a query fills in: each ``model`` adds one; ``revision`` applies to a single model only."""
    named = [text for key, text in forms.revised(query) if key == "model"]
    # one character over the limit, so that excess models are rejected rather than truncated
    model = ", ".join(named)[: limits.MODELS * (limits.REFERENCE_LENGTH + 2) + 1]
    return forms.queried(query, DtypeRequest) | {"model": model}


def permalink(request: DtypeRequest) -> str:
    """Return the query that makes the same request: ``?model=...&revision=...&mode=...``."""
    model, _, revision = request.model.partition("@") if "+" not in request.model else (request.model, "", "")
    return forms.permalink(request, model=[("model", model), *([("revision", revision)] if revision else [])])
