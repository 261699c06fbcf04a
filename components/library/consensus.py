"""The consensus of the labels of one model. Disagreement is shown, never resolved silently."""

from collections.abc import Sequence
from typing import NamedTuple

from analyzers import limits
from analyzers.base import Data
from analyzers.dtype_detection.labels import precision_of
from analyzers.terminal import plural
from components.library.schema import Label


class LabelRow(Data):
    """A label with its state. current: its contributor has not replaced it; flags: number of contributors with a login who flagged it.

    state: "saved here", or "published" in ``commit`` of the dataset.
    """

    label: Label
    current: bool
    flags: int
    state: str
    commit: str


class Vote(Data):
    """How many contributors say ``precision``, and how many of them are of the model's organisation."""

    precision: str
    contributors: int
    authors: int


class Consensus(Data):
    """The consensus for one model. precision: what most contributors say, None if there are no labels, or a tie.

    disputed: labels that count name different precisions; "bf16" and "bf16-mixed" do not differ. contributors: who agree with
    ``precision``. votes: most first. labels: the current ones. sentence: for people, empty without labels. evidence: of one that
    agrees, an author's before others'.
    """

    model: str
    precision: str | None
    disputed: bool
    contributors: int
    votes: tuple[Vote, ...]
    labels: tuple[LabelRow, ...]
    sentence: str
    evidence: str


class Opinion(NamedTuple):
    """The facts of a current label that the consensus depends on."""

    precision: str
    provenance: str
    author: bool
    flags: int


class Verdict(NamedTuple):
    """See `Consensus`."""

    precision: str | None
    disputed: bool
    contributors: int
    votes: tuple[Vote, ...]


def counting(opinions: Sequence[Opinion]) -> list[Opinion]:
    """The opinions that count: not flagged by FLAGS contributors; those without a login only if there are no others."""
    standing = [each for each in opinions if each.flags < limits.FLAGS]
    return [each for each in standing if each.provenance != "local"] or standing


def verdict(opinions: Sequence[Opinion]) -> Verdict:
    """The majority. Precisions of one kind count together; a tie goes to the kind with more authors, or to none."""
    counted = counting(opinions)
    if len(counted) == 1:  # of nearly all models
        only = counted[0]
        return Verdict(only.precision, False, 1, (Vote(precision=only.precision, contributors=1, authors=int(only.author)),))
    votes = sorted(
        (
            Vote(
                precision=precision,
                contributors=sum(each.precision == precision for each in counted),
                authors=sum(each.precision == precision and each.author for each in counted),
            )
            for precision in {each.precision for each in counted}
        ),
        key=lambda vote: (-vote.contributors, -vote.authors, vote.precision),
    )
    kinds: dict[str, list[Vote]] = {}
    for vote in votes:
        kinds.setdefault(kind_of(vote.precision), []).append(vote)
    ranked = sorted(kinds.values(), key=_weight, reverse=True)
    tie = len(ranked) > 1 and _weight(ranked[0]) == _weight(ranked[1])
    if not ranked or tie:
        return Verdict(None, len(ranked) > 1, 0, tuple(votes))
    best = ranked[0]
    open_between = len(best) > 1 and (best[0].contributors, best[0].authors) == (best[1].contributors, best[1].authors)
    precision = kind_of(best[0].precision) if open_between else best[0].precision
    return Verdict(precision, len(ranked) > 1, sum(vote.contributors for vote in best), tuple(votes))


def consensus(model: str, rows: Sequence[LabelRow]) -> Consensus:
    """The consensus of ``rows``, the current labels of ``model``."""
    found = verdict([Opinion(row.label.precision, row.label.provenance, row.label.author, row.flags) for row in rows])
    agreeing = [row.label for row in rows if found.precision and kind_of(row.label.precision) == kind_of(found.precision)]
    agreeing.sort(key=lambda label: (not label.author, label.provenance == "local", not label.evidence_link, label.created))
    evidence = (agreeing[0].evidence_link or agreeing[0].evidence_quote) if agreeing else ""
    return Consensus(
        model=model,
        precision=found.precision,
        disputed=found.disputed,
        contributors=found.contributors,
        votes=found.votes,
        labels=tuple(rows),
        sentence=_sentence(found),
        evidence=evidence,
    )


def kind_of(precision: str) -> str:
    """The kind of training that a precision belongs to: "bf16" for "bf16-mixed"; any other precision is its own kind."""
    return precision_of(precision) or precision


def _weight(votes: Sequence[Vote]) -> tuple[int, int]:
    return sum(vote.contributors for vote in votes), sum(vote.authors for vote in votes)


def _sentence(found: Verdict) -> str:
    if not found.votes:
        return ""
    if found.disputed:
        return "labels disagree: " + ", ".join(f"{vote.precision} {vote.contributors}" for vote in found.votes)
    return f"labelled {found.precision} by {plural(found.contributors, 'contributor')}"
