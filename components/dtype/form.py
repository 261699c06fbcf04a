"""The passport form: as typed, as a request, as a link, and as a command."""

from dataclasses import dataclass, replace

from analyzers import limits
from analyzers.dtype_detection import DtypeReport, DtypeRequest
from analyzers.errors import InvalidRequest
from components.forms.form import (
    MODEL,
    READING,
    Cost,
    Query,
    ReadingForm,
    changed,
    command_line,
    link_to_reading,
    parsed,
    pinned,
    queried,
    references,
    revised,
    validated,
)

ABOUT = (
    "The precision passport of a checkpoint as JSON: how it is stored, which formats its values provably passed through, in which "
    "precision it was probably trained, and whether its weights fit fp16."
)
PARAMETERS = {"model": MODEL, **READING}
COST = Cost("quick mode, a smaller budget, fewer models")


@dataclass(frozen=True, slots=True)
class Form(ReadingForm):
    """The fields of the form, as typed. ``model`` may name several."""

    model: str = ""

    def request(self) -> DtypeRequest:
        """The validated request for one model. Raises InvalidRequest with the sentence to show."""
        if not self.model.strip():
            raise InvalidRequest("Type or paste a model id such as google-t5/t5-small, or pick one of the samples.")
        return validated(DtypeRequest, model=self.model.strip(), **parsed(self, DtypeRequest, READING))

    def requests(self) -> list[DtypeRequest]:
        """One request per model in ``model``, all with the same options. Raises InvalidRequest."""
        return [replace(self, model=model).request() for model in models(self.model) or [""]]


def models(text: str) -> list[str]:
    """The model ids in ``text``, without duplicates. Raises InvalidRequest if there are too many."""
    found = list(dict.fromkeys(references(text, limits.MODELS)))
    if len(found) > limits.MODELS:
        raise InvalidRequest(f"One run takes at most {limits.MODELS} models (MANTISSA_MODELS), not {len(found):,}: use the command line.")
    return found


def form(query: Query) -> Form:
    """The form described by a query: each ``model`` adds one; ``revision`` applies to a single model only."""
    asked = [text for key, text in revised(query) if key == "model"]
    # one character over the limit, so that too many are rejected rather than truncated
    model = ", ".join(asked)[: limits.MODELS * (limits.REFERENCE_LENGTH + 2) + 1]
    return Form(model, **queried(query, Form, READING))


def permalink(report: DtypeReport) -> str:
    """The query that reproduces this report, pinned to its commit: ``?model=...&revision=...&mode=...``."""
    checkpoint = report.checkpoint
    keys = [("model", checkpoint.ref)]
    if not checkpoint.ref.startswith("sample:"):
        keys.append(("revision", checkpoint.commit))
    return link_to_reading(keys, report.request)


def command(report: DtypeReport) -> str:
    """The shell command for the same analysis."""
    return command_line(["dtype", pinned(report.checkpoint)], changed(report.request, READING))
