"""Gives the short answers of parents, as a card shows them."""

from analyzers.parents.report import ParentsReport
from components.parents.ancestors import ancestors
from components.results.layout import Verdict
from components.text import numbers

_RELATIONS = {
    "same-weights": "Same weights",
    "quantized-copy": "Quantized copy",
    "derived": "Derived, or a common ancestor",
    "merge": "Merge",
    "stack": "Stack of layers",
    "unrelated": "Not related",
    "undecided": "Not decided",
}


def verdicts(report: ParentsReport) -> list[Verdict]:
    """Return what the model is to its candidates, and how many values are equal of how many that were compared."""
    equal = report.candidates[0].equal_share
    share = "Cannot tell" if equal is None else numbers.share(equal)
    count = f"{report.values_compared:,}"
    return [
        relation(report),
        Verdict("Values equal in bf16", share, *measured(report)),
        Verdict("Values compared", count, *measured(report)),
    ]


def relation(report: ParentsReport) -> Verdict:
    """Return the relation, with the kind of evidence that all named parents have."""
    answer, named = _RELATIONS[report.verdict], ancestors(report)
    if report.verdict == "same-weights" and report.blocks is not None:
        answer = "Equal where read"
    if report.verdict == "undecided":
        return Verdict("Relation", answer, "undecided", "not decided")
    kind = "proof" if named and all(each.proven for each in named) else "inference"
    return Verdict("Relation", answer, kind, kind)


def measured(report: ParentsReport) -> tuple[str, str]:
    """Return the kind of what was measured: of a sample, or of all values compared."""
    return ("fact", "fact") if report.blocks is None else ("estimate", "by a sample")
