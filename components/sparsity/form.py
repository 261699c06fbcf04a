"""The sparsity form: as typed, as a link, and as a command."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from analyzers import limits
from analyzers.errors import InvalidRequest
from analyzers.update_sparsity.report import DEFAULT_ETA, SparsityReport, SparsityRequest
from components.forms.links import SHOWN, Query, Reading, command_line, link, pinned, reading, references, validated

# One character over the limit, so that too long references are rejected rather than truncated.
_LONGEST = limits.REFERENCE_LENGTH + 1


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of the form, as typed. Each text of ``tuned`` may name any number of checkpoints."""

    base: str = ""
    tuned: Sequence[str] = ()
    reading: Reading = field(default_factory=Reading)
    eta: str = ""
    spectral: bool = False

    def request(self) -> SparsityRequest:
        """The validated request. Raises InvalidRequest with the sentence to show."""
        tuned = [name for text in self.tuned for name in references(text, limits.TRAJECTORY)]
        if not self.base.strip() or not tuned:
            missing = "the checkpoint it was tuned to" if self.base.strip() else "the base checkpoint"
            raise InvalidRequest(f"Type or paste {missing}, such as org/name or org/name@revision, or pick one of the examples.")
        fields = self.reading.fields() | {"eta": _eta(self.eta), "spectral": self.spectral}
        return validated(SparsityRequest, base=self.base.strip(), tuned=tuple(tuned), **fields)


def form(query: Query) -> Form:
    """The form described by a query: each ``tuned`` adds a checkpoint; of other keys the last value counts."""
    last = dict(query)
    tuned = [text[:_LONGEST] for key, text in query if key == "tuned" and text.strip()]
    return Form(
        base=last.get("base", "")[:_LONGEST],
        tuned=tuned[: limits.TRAJECTORY + 1],
        reading=reading(query),
        eta=last.get("eta", "")[:_LONGEST],
        spectral=last.get("spectral", "") in ("1", "true"),
    )


def permalink(report: SparsityReport) -> str:
    """The query that reproduces this report, pinned to the commits: ``?base=...&tuned=...&tuned=...&mode=...``."""
    keys = [("base", pinned(report.base)), *(("tuned", pinned(each)) for each in report.tuned)]
    if report.eta != DEFAULT_ETA:
        keys.append(("eta", repr(report.eta)))
    if report.request.spectral:
        keys.append(("spectral", "1"))
    return link(keys, report.request)


def command(report: SparsityReport) -> str:
    """The shell command for the same analysis."""
    words = ["sparsity", pinned(report.base), *map(pinned, report.tuned)]
    if report.eta != DEFAULT_ETA:
        words += ["--eta", repr(report.eta)]
    if report.request.spectral:
        words.append("--spectral")
    return command_line(words, report.request)


def _eta(text: str) -> float:
    """The probe's eta; the default for nothing. Raises InvalidRequest."""
    plain = text.strip()
    try:
        return float(plain) if plain else DEFAULT_ETA
    except ValueError:
        raise InvalidRequest(f"{text[:SHOWN]!r} is no eta: write a number between 0 and 1, such as 1e-3.") from None
