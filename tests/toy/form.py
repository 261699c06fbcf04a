"""The form of the toy analyzer."""

from dataclasses import dataclass

from components.forms.form import (
    MODEL,
    READING,
    Cost,
    Query,
    ReadingForm,
    command_line,
    link_to_reading,
    parsed,
    pinned,
    queried,
    validated,
)
from tests.toy import ToyReport, ToyRequest

ABOUT = "How many tensors a checkpoint has, as JSON."
PARAMETERS = {"model": MODEL, **READING}
COST = Cost("quick mode")


@dataclass(frozen=True, slots=True)
class Form(ReadingForm):
    """The fields of the form, as typed."""

    model: str = ""

    def request(self) -> ToyRequest:
        """The validated request."""
        return validated(ToyRequest, model=self.model, **parsed(self, ToyRequest, READING))


def form(query: Query) -> Form:
    """The form described by a query."""
    return Form(**queried(query, Form, ("model", *READING)))


def permalink(report: ToyReport) -> str:
    """The query that shows this report again."""
    return link_to_reading([("model", pinned(report.checkpoint))], report.request)


def command(report: ToyReport) -> str:
    """The shell command for the same analysis."""
    return command_line(["toy", pinned(report.checkpoint)], {})
