"""The form of the toy analyzer."""

from dataclasses import dataclass

from components.forms import form as forms
from tests.toy import ToyReport, ToyRequest

ABOUT = "How many tensors a checkpoint has, as JSON."
PARAMETERS = ("model", *forms.READING)
COST = forms.Cost("quick mode")


@dataclass(frozen=True, slots=True)
class Form(forms.ReadingForm):
    """The fields of the form, as typed."""

    model: str = ""

    def request(self) -> ToyRequest:
        """The validated request."""
        return forms.validated(ToyRequest, self, forms.READING, model=self.model)


def form(query: forms.Query) -> Form:
    """The form described by a query."""
    return Form(**forms.queried(query, Form, ("model", *forms.READING)))


def permalink(report: ToyReport) -> str:
    """The query that shows this report again."""
    return forms.link_to_reading([("model", forms.pinned(report.checkpoint))], report.request)


def command(report: ToyReport) -> str:
    """The shell command for the same analysis."""
    return forms.command_line(["toy", forms.pinned(report.checkpoint)], {})
