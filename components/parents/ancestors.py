"""Lists the ancestors that a report names: each with its weight, and whether the ancestry is proven."""

from typing import NamedTuple

from analyzers.parents.report import Candidate, ParentsReport

# Below this share, exact values prove nothing (as in the verdict).
_PROVES = 0.02


class Ancestor(NamedTuple):
    """A candidate that the verdict names. weight: in a stack, the candidate's share of the layers; proven: by far more equal bits than by
    chance, rather than inferred.
    """

    row: Candidate
    weight: float
    proven: bool


def ancestors(report: ParentsReport) -> list[Ancestor]:
    """List the candidates that the verdict names; none for unrelated models."""
    if report.verdict in ("unrelated", "undecided"):
        return []
    fit = report.fit
    by_ref = {row.ref: row for row in report.candidates}
    if fit is not None and report.verdict == "merge":
        exact = fit.sparse is not None or (fit.exact_share or 0.0) > max(_PROVES, 5 * (fit.exact_by_chance or 0.0))
        return [Ancestor(by_ref[each.ref], each.weight, exact) for each in fit.parents if each.ref in report.parents]
    if report.verdict == "stack":
        proven = any(each.proof for each in report.evidence)
        of = [each.ref for each in report.layer_map if each.layer is not None]
        return [Ancestor(by_ref[ref], of.count(ref) / max(1, len(of)), proven) for ref in report.parents if ref in by_ref]
    best = report.candidates[0]
    proven = any(each.proof for each in report.evidence)
    weight = next((each.weight for each in fit.parents if best.ref in (each.ref, *each.alike)), 1.0) if fit is not None else 1.0
    return [Ancestor(best, weight, proven)]
