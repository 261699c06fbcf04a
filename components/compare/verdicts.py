"""Gives the short answers of compare, as a card shows them."""

from analyzers.compare.report import CompareReport
from components.parents.verdicts import measured, relation
from components.results.layout import Verdict
from components.text import numbers


def verdicts(report: CompareReport) -> list[Verdict]:
    """Return what the models are to each other, how much changed, what was compared, and whether the weights show a direction."""
    related, changed = relation(report.parents), report.relation.changed_share
    sampled = report.sparsity is not None and report.sparsity.interval is not None
    how = ("undecided", "not counted") if changed is None else ("estimate", "by a sample") if sampled else ("fact", "fact")
    covered = report.covered_share
    direction = {
        "shown": ("Shown by the weights", related.kind, related.how),
        "assumed": ("As given: not shown by weights", "undecided", "assumed"),
        None: ("Not shown by the weights", "undecided", "not decided"),
    }[report.relation.direction]
    return [
        related,
        Verdict("Changed at bf16 resolution", "Not counted" if changed is None else numbers.share(changed), *how),
        Verdict("Compared", "Not known" if covered is None else f"{numbers.share(covered)} of the weights", *measured(report.parents)),
        Verdict("Direction", *direction),
    ]
