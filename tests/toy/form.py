"""The form of the toy analyzer."""

from dataclasses import dataclass

from components.forms import form as forms
from tests.toy import ToyRequest

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


def permalink(request: ToyRequest) -> str:
    """The query that asks for the same."""
    return forms.link_to_reading([("model", request.model)], request)


def command(request: ToyRequest) -> str:
    """The shell command for the same analysis."""
    return forms.command_line(["toy", request.model], {})
