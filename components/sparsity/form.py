"""The sparsity form: as typed, as a request, as a link, and as a command."""

from dataclasses import dataclass

from analyzers import limits
from analyzers.errors import InvalidRequest
from analyzers.update_sparsity.report import DEFAULT_ETA, SparsityReport, SparsityRequest
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
    validated,
)

ABOUT = (
    f"What changed from a base checkpoint to a tuned one, or to each of up to {limits.TRAJECTORY} in the order of the training, as JSON: "
    "the fraction of weights that are unchanged in bf16, by layer, role and tensor, how large the updates are, and what could not be "
    "compared."
)
PARAMETERS = {
    "base": f"The checkpoint before training. {MODEL}",
    "tuned": f"What became of it: a list of one to {limits.TRAJECTORY} checkpoints, in the order of the training.",
    **READING,
    "eta": f"Of the probe, which counts a weight as changed where |v - w| > eta max(|w|, |v|); between 0 and 1 (default {DEFAULT_ETA:g}).",
    "spectral": "Also compare singular values and subspaces of matrices, which takes minutes (default false).",
}
COST = Cost("quick mode, a smaller budget, fewer models")
_OWN = ("eta", "spectral")
# One character over the limit, so that too long references are rejected rather than truncated.
_LONGEST = limits.REFERENCE_LENGTH + 1


@dataclass(frozen=True, slots=True)
class Form(ReadingForm):
    """The fields of the form, as typed. Each text of ``tuned`` may name any number of checkpoints."""

    base: str = ""
    tuned: tuple[str, ...] = ()
    eta: str = ""
    spectral: bool = False

    def request(self) -> SparsityRequest:
        """The validated request. Raises InvalidRequest with the sentence to show."""
        tuned = tuple(name for text in self.tuned for name in references(text, limits.TRAJECTORY))
        if not self.base.strip() or not tuned:
            missing = "the checkpoint it was tuned to" if self.base.strip() else "the base checkpoint"
            raise InvalidRequest(f"Type or paste {missing}, such as org/name or org/name@revision, or pick one of the examples.")
        return validated(SparsityRequest, base=self.base.strip(), tuned=tuned, **parsed(self, SparsityRequest, (*READING, *_OWN)))


def form(query: Query) -> Form:
    """The form described by a query: each ``tuned`` adds a checkpoint; of other keys the last value counts."""
    tuned = tuple(text[:_LONGEST] for key, text in query if key == "tuned" and text.strip())
    return Form(tuned=tuned[: limits.TRAJECTORY + 1], **queried(query, Form, ("base", *READING, *_OWN)))


def permalink(report: SparsityReport) -> str:
    """The query that reproduces this report, pinned to the commits: ``?base=...&tuned=...&tuned=...&mode=...``."""
    options = [(name, str(int(value)) if isinstance(value, bool) else repr(value)) for name, value in changed(report.request, _OWN).items()]
    return link_to_reading([("base", pinned(report.base)), *(("tuned", pinned(each)) for each in report.tuned), *options], report.request)


def command(report: SparsityReport) -> str:
    """The shell command for the same analysis."""
    words = ["sparsity", pinned(report.base), *map(pinned, report.tuned)]
    return command_line(words, changed(report.request, (*_OWN, *READING)))
