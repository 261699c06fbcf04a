"""The form of the passport page, as typed, as a link, and as a command."""

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
        """A request for each model named in ``model``, all with the same options. Raises InvalidRequest."""
        return [replace(self, model=model).request() for model in models(self.model) or [""]]


def models(text: str) -> list[str]:
    """The model ids in ``text``, each once. Raises InvalidRequest for too many."""
    found = list(dict.fromkeys(references(text, limits.MODELS)))
    if len(found) > limits.MODELS:
        raise InvalidRequest(f"One run takes at most {limits.MODELS} models (MANTISSA_MODELS), not {len(found):,}: use the command line.")
    return found


def form(query: Query) -> Form:
    """The form that the keys and values of a query describe: each ``model`` adds one; ``revision`` belongs to a single one."""
    asked = [text for key, text in revised(query) if key == "model"]
    # one character more than is allowed, so that too much is refused and not cut
    model = ", ".join(asked)[: limits.MODELS * (limits.REFERENCE_LENGTH + 2) + 1]
    return Form(model, reading(query))


def permalink(report: DtypeReport) -> str:
    """The query that shows this report again, pinned to its commit: ``?model=...&revision=...&mode=...``."""
    checkpoint = report.checkpoint
    keys = [("model", checkpoint.ref)]
    if not checkpoint.ref.startswith("sample:"):
        keys.append(("revision", checkpoint.commit))
    return link(keys, report.request)


def permalink_of_several(outcomes: Sequence[Outcome], request: DtypeRequest) -> str:
    """The query that shows these models again, ``?model=...&model=...``, pinned to their commits where these are known."""
    return link([("model", _pinned(outcome)) for outcome in outcomes], request)


def command(report: DtypeReport) -> str:
    """The line that makes the same analysis in a shell."""
    return command_line(["dtype", pinned(report.checkpoint)], report.request)


def command_of_several(outcomes: Sequence[Outcome], request: DtypeRequest) -> str:
    """The line that makes the same table in a shell."""
    return command_line(["dtype", *map(_pinned, outcomes)], request)


def _pinned(outcome: Outcome) -> str:
    """The model with its commit, where it has one; as asked for where it could not be read."""
    return outcome.model if outcome.report is None else pinned(outcome.report.checkpoint)
