"""Lists the ancestors that a report names: each with its weight, and whether the ancestry is proven."""

from typing import NamedTuple

from analyzers.parents.evidence import proves
from analyzers.parents.facts import proven
from analyzers.parents.report import Candidate, ParentsReport


class Ancestor(NamedTuple):
    """A candidate that the verdict names. weight: in a merge; in a stack, the candidate's share of the layers; else null. proven: by far
    more equal bits than by chance, rather than inferred.
    """

    row: Candidate
    weight: float | None
    proven: bool


def ancestors(report: ParentsReport) -> list[Ancestor]:
    """List the candidates that the verdict names; none for unrelated models."""
    if report.verdict in ("unrelated", "undecided"):
        return []
    fit, proved = report.fit, any(each.kind == "proof" for each in report.evidence)
    by_ref = {row.ref: row for row in report.candidates}
    if fit is not None and report.verdict == "merge":
        exact = proves(fit, len(report.parents))
        return [Ancestor(by_ref[each.ref], each.weight, exact) for each in fit.parents if each.ref in report.parents]
    if report.verdict == "stack":
        exact = proved
        of = [each.ref for each in report.layer_map if each.layer is not None]
        return [Ancestor(by_ref[ref], of.count(ref) / max(1, len(of)), exact) for ref in report.parents if ref in by_ref]
    equal = report.verdict == "same-weights" and proved
    return [Ancestor(by_ref[ref], None, equal or proven(by_ref[ref])) for ref in report.parents]
