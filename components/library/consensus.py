"""Computes the consensus of the labels of one model. Disagreement is shown, never resolved silently."""

from collections import Counter
from collections.abc import Sequence

from analyzers.core.formatting import plural
from analyzers.core.records import Record
from analyzers.dtype.labelled_models import precision_of
from components.library.items import OWNER, Label


class Vote(Record):
    """The number of contributors who say ``precision``, and how many of them belong to the model's organisation."""

    precision: str
    contributors: int
    authors: int


class Consensus(Record):
    """The consensus for one model.

    precision: named by most contributors, None without labels or in a tie. disputed: labels name different precisions; "bf16" and
    "bf16-mixed" do not differ. contributors: how many agree with ``precision``; own: it is the word of the app's owner alone. votes: most
    frequent first. sentence: for display, empty without votes. evidence: of a label that agrees, preferably an author's.
    """

    precision: str | None = None
    disputed: bool = False
    contributors: int = 0
    own: bool = False
    votes: tuple[Vote, ...] = ()
    sentence: str = ""
    evidence: str = ""


def consensus(labels: Sequence[Label]) -> Consensus:
    """Return the majority of ``labels``, the current ones of a model.

    Precisions of one kind count together; a tie goes to the kind with more authors, or to none.
    """
    if not labels:
        return Consensus()
    votes = _votes(labels)
    kinds: dict[str, list[Vote]] = {}
    for vote in votes:
        kinds.setdefault(kind_of(vote.precision), []).append(vote)
    best, *others = sorted(kinds.values(), key=_weight, reverse=True)
    precision = None if others and _weight(best) == _weight(others[0]) else best[0].precision
    if precision and len(best) > 1 and _weight(best[:1]) == _weight(best[1:2]):
        precision = kind_of(precision)
    agreeing = [label for label in labels if precision and kind_of(label.precision) == kind_of(precision)]
    agreeing.sort(key=lambda label: (not label.author, label.contributor == OWNER, not label.evidence_link, label.created))
    sentence = f"labelled {precision} by {plural(len(agreeing), 'contributor')}"
    if others:
        sentence = "labels disagree: " + ", ".join(f"{vote.precision} {vote.contributors}" for vote in votes)
    return Consensus(
        precision=precision,
        disputed=bool(others),
        contributors=len(agreeing),
        own=bool(agreeing) and all(label.contributor == OWNER for label in agreeing),
        votes=tuple(votes),
        sentence=sentence,
        evidence=agreeing[0].evidence if agreeing else "",
    )


def kind_of(precision: str) -> str:
    """Return the kind of training that a precision belongs to: "bf16" for "bf16-mixed"; any other precision is its own kind."""
    return precision_of(precision) or precision


def _votes(labels: Sequence[Label]) -> list[Vote]:
    """Count the votes, most contributors first."""
    contributors = Counter(label.precision for label in labels)
    authors = Counter(label.precision for label in labels if label.author)
    votes = [Vote(precision=name, contributors=count, authors=authors[name]) for name, count in contributors.items()]
    return sorted(votes, key=lambda vote: (-vote.contributors, -vote.authors, vote.precision))


def _weight(votes: Sequence[Vote]) -> tuple[int, int]:
    return sum(vote.contributors for vote in votes), sum(vote.authors for vote in votes)
