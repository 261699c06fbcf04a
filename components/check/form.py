"""The check form: as typed, as a request, as a link, and as a command."""

from dataclasses import dataclass

from analyzers.check.report import CheckRequest
from components.forms.form import Cost, Query, command_line, link, one_model, queried, validated

ABOUT = (
    "Whether an upload is what it claims to be, and what it wastes, as JSON: findings, each with its level (error, warning, info), what to "
    "do about it, the bytes that would save, and the tensors; with a base also what is missing, misshapen or unchanged. Reads all of it."
)
# Of the endpoint, in this order.
PARAMETERS = ("model", "base")
COST = Cost("the check without a base")
_ONE = "Type or paste one {}: org/name or org/name@revision, or a sample."


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of the form, as typed."""

    model: str = ""
    base: str = ""

    def request(self) -> CheckRequest:
        """The validated request. Raises InvalidRequest with the sentence to show."""
        base = one_model(self.base, _ONE.format("base")) if self.base.strip() else None
        return validated(CheckRequest, self, (), model=one_model(self.model, _ONE.format("model")), base=base)


def form(query: Query) -> Form:
    """The form described by a query."""
    return Form(**queried(query, Form, ("model", "base")))


def permalink(request: CheckRequest) -> str:
    """The query that asks for the same: ``?model=...&base=...``."""
    return link([("model", request.model)], _base(request))


def command(request: CheckRequest) -> str:
    """The shell command for the same check."""
    return command_line(["check", request.model], _base(request))


def _base(request: CheckRequest) -> dict[str, str]:
    return {"base": request.base} if request.base else {}
