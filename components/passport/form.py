"""The passport form: as typed, as a link, and as a command."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from analyzers import limits
from analyzers.dtype_detection import DtypeReport, DtypeRequest
from analyzers.errors import InvalidRequest
from components.forms.links import Query, Reading, command_line, link, pinned, reading, references, revised, validated
from components.passport.outcomes import Outcome


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of the form, as typed. ``model`` may name several."""

    model: str = ""
    reading: Reading = field(default_factory=Reading)

    def request(self) -> DtypeRequest:
        """The validated request for one model. Raises InvalidRequest with the sentence to show."""
        if not self.model.strip():
            raise InvalidRequest("Type or paste a model id such as google-t5/t5-small, or pick one of the samples.")
        return validated(DtypeRequest, model=self.model.strip(), **self.reading.fields())

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
    return Form(model, reading(query))


def permalink(report: DtypeReport) -> str:
    """The query that reproduces this report, pinned to its commit: ``?model=...&revision=...&mode=...``."""
    checkpoint = report.checkpoint
    keys = [("model", checkpoint.ref)]
    if not checkpoint.ref.startswith("sample:"):
        keys.append(("revision", checkpoint.commit))
    return link(keys, report.request)


def permalink_of_several(outcomes: Sequence[Outcome], request: DtypeRequest) -> str:
    """The query that reproduces this comparison, ``?model=...&model=...``, pinned to the commits where they are known."""
    return link([("model", _pinned(outcome)) for outcome in outcomes], request)


def command(report: DtypeReport) -> str:
    """The shell command for the same analysis."""
    return command_line(["dtype", pinned(report.checkpoint)], report.request)


def command_of_several(outcomes: Sequence[Outcome], request: DtypeRequest) -> str:
    """The shell command for the same comparison."""
    return command_line(["dtype", *map(_pinned, outcomes)], request)


def _pinned(outcome: Outcome) -> str:
    """The model with its commit if it has one; as requested if it could not be read."""
    return outcome.model if outcome.report is None else pinned(outcome.report.checkpoint)
