"""Computes the consensus of the labels of one model. Disagreement is shown, never resolved silently."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from analyzers.core.records import Record
from analyzers.core.terminal import plural
from analyzers.core.untrusted_json import parse_json
from analyzers.dtype_detection.labelled_models import precision_of
from components.library.library_status import state_of
from components.library.schema import Label

# A label without a login counts only in the library of a visitor's own app (see `Library.open`), and only if it was added there.
PROPOSAL = "provenance = 'local' AND (published <> '' OR NOT EXISTS (SELECT 1 FROM meta WHERE name = 'own' AND value = '1'))"
COLUMNS = f"record, current, flags, {PROPOSAL}, published"


class LabelRow(Record):
    """A label with its state. current: neither replaced by its contributor nor hidden; a label with FLAGS flags is hidden.

    proposal: it has no login behind it and does not count; it does once a contributor with a login adds the same label.

    flags: number of contributors with a login who flagged it, unless a moderator decided: 0 if it is shown, FLAGS or more if hidden.
    state: "saved here", or "published" in ``commit`` of the dataset.
    """

    label: Label
    current: bool
    flags: int
    proposal: bool
    state: str
    commit: str


def label_row(row: Any) -> LabelRow:
    """Build a label's row from the columns `COLUMNS`."""
    record, current, flags, proposal, commit = row
    label = Label.model_construct(**parse_json(record))  # validated when it was written
    standing: dict[str, Any] = {"current": bool(current), "flags": flags, "proposal": bool(proposal)}
    return LabelRow.model_construct(label=label, **standing, state=state_of(commit), commit=commit)


class Vote(Record):
    """The number of contributors who say ``precision``, and how many of them belong to the model's organisation."""

    precision: str
    contributors: int
    authors: int


class Consensus(Record):
    """The consensus for one model. precision: named by most contributors, None without labels that count or in a tie.

    disputed: labels that count name different precisions; "bf16" and "bf16-mixed" do not differ. contributors: how many agree with
    ``precision``; own: none of them has a login. votes: most frequent first. labels: the current labels. proposed: the precisions of
    labels that do not count. sentence: for display, empty without votes. evidence: of a label that agrees, preferably an author's.
    """

    model: str
    precision: str | None
    disputed: bool
    contributors: int
    own: bool
    votes: tuple[Vote, ...]
    labels: tuple[LabelRow, ...]
    proposed: tuple[str, ...]
    sentence: str
    evidence: str


def consensus(model: str, rows: Sequence[LabelRow]) -> Consensus:
    """Return the majority of ``rows``, the current labels of ``model``.

    Precisions of one kind count together; a tie goes to the kind with more authors, or to none.
    """
    counting = [row.label for row in rows if not row.proposal]
    votes = _votes(counting)
    kinds: dict[str, list[Vote]] = {}
    for vote in votes:
        kinds.setdefault(kind_of(vote.precision), []).append(vote)
    best, *others = sorted(kinds.values(), key=_weight, reverse=True) or [[]]
    if others and _weight(best) == _weight(others[0]):
        best = []
    precision = best[0].precision if best else None
    if len(best) > 1 and _weight(best[:1]) == _weight(best[1:2]):
        precision = kind_of(best[0].precision)
    agreeing = [label for label in counting if precision and kind_of(label.precision) == kind_of(precision)]
    agreeing.sort(key=lambda label: (not label.author, label.provenance == "local", not label.evidence_link, label.created))
    contributors = _weight(best)[0]
    sentence = f"labelled {precision} by {plural(contributors, 'contributor')}" if votes else ""
    if others:
        sentence = "labels disagree: " + ", ".join(f"{vote.precision} {vote.contributors}" for vote in votes)
    return Consensus(
        model=model,
        precision=precision,
        disputed=bool(others),
        contributors=contributors,
        own=bool(agreeing) and all(label.provenance == "local" for label in agreeing),
        votes=tuple(votes),
        labels=tuple(rows),
        proposed=tuple(sorted({row.label.precision for row in rows if row.proposal})),
        sentence=sentence,
        evidence=(agreeing[0].evidence_link or agreeing[0].evidence_quote) if agreeing else "",
    )


def _votes(labels: Sequence[Label]) -> list[Vote]:
    """Count the votes, most contributors first."""
    contributors = Counter(label.precision for label in labels)
    authors = Counter(label.precision for label in labels if label.author)
    votes = [Vote(precision=name, contributors=count, authors=authors[name]) for name, count in contributors.items()]
    return sorted(votes, key=lambda vote: (-vote.contributors, -vote.authors, vote.precision))


def kind_of(precision: str) -> str:
    """Return the kind of training that a precision belongs to: "bf16" for "bf16-mixed"; any other precision is its own kind."""
    return precision_of(precision) or precision


def _weight(votes: Sequence[Vote]) -> tuple[int, int]:
    return sum(vote.contributors for vote in votes), sum(vote.authors for vote in votes)
