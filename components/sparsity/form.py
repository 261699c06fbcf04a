"""The sparsity form: as typed, as a request, as a link, and as a command."""

from dataclasses import dataclass

from analyzers import limits
from analyzers.errors import InvalidRequest
from analyzers.update_sparsity.report import SparsityRequest
from components.forms import form as forms

ABOUT = (
    f"What changed from a base checkpoint to a tuned one, or to each of up to {limits.TRAJECTORY} in the order of the training, as JSON: "
    "the fraction of weights that are unchanged in bf16, by layer, role and tensor, how large the updates are, and what could not be "
    "compared."
)
# Of the endpoint, in this order.
PARAMETERS = ("base", "tuned", *forms.READING, "eta", "spectral")
COST = forms.Cost("quick mode, a smaller budget, fewer models")
_OWN = ("eta", "spectral")
# One character over the limit, so that too long references are rejected rather than truncated.
_LONGEST = limits.REFERENCE_LENGTH + 1


@dataclass(frozen=True, slots=True)
class Form(forms.ReadingForm):
    """The fields of the form, as typed. Each text of ``tuned`` may name any number of checkpoints."""

    base: str = ""
    tuned: tuple[str, ...] = ()
    eta: str = ""
    spectral: bool = False

    def request(self) -> SparsityRequest:
        """The validated request. Raises InvalidRequest with the sentence to show."""
        tuned = tuple(name for text in self.tuned for name in forms.references(text, limits.TRAJECTORY))
        if not self.base.strip() or not tuned:
            missing = "the checkpoint it was tuned to" if self.base.strip() else "the base checkpoint"
            raise InvalidRequest(f"Type or paste {missing}, such as org/name or org/name@revision, or pick one of the examples.")
        return forms.validated(SparsityRequest, self, (*forms.READING, *_OWN), base=self.base.strip(), tuned=tuned)


def form(query: forms.Query) -> Form:
    """The form described by a query: each ``tuned`` adds a checkpoint; of other keys the last value counts."""
    tuned = tuple(text[:_LONGEST] for key, text in query if key == "tuned" and text.strip())
    return Form(tuned=tuned[: limits.TRAJECTORY + 1], **forms.queried(query, Form, ("base", *forms.READING, *_OWN)))


def permalink(request: SparsityRequest) -> str:
    """The query that asks for the same: ``?base=...&tuned=...&tuned=...&mode=...``."""
    return forms.link_to_reading([("base", request.base), *(("tuned", name) for name in request.tuned)], request, _OWN)


def command(request: SparsityRequest) -> str:
    """The shell command for the same analysis."""
    return forms.command_line(["sparsity", request.base, *request.tuned], forms.changed(request, (*_OWN, *forms.READING)))
