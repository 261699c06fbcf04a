"""Explicit coverages and stacks, for tests of what is said about them."""

from typing import Any, TypeVar

from analyzers.core.coverage import Class, Counted, Coverage, LeftOut, NotRead
from analyzers.core.report import Report
from analyzers.parents.report import MovedLayer, ParentsReport
from tests.components.dtype_reports import HOSTILE

_Report = TypeVar("_Report", bound=Report)


def coverage(ref: str, share: float = 0.25, covered: Class = "compared", **changes: Any) -> Coverage:
    """Make the coverage of a checkpoint with a million weights and some tied and buffered elements, of which only ``share`` is covered."""
    reached = round(1_000_000 * share)
    classes: dict[Class, Counted] = {
        covered: Counted(tensors=30, parameters=reached, bytes=2 * reached),
        "tied": Counted(tensors=1, parameters=50_000, bytes=100_000),
        "buffer": Counted(tensors=2, parameters=100, bytes=400),
    }
    left_out: tuple[LeftOut, ...] = ()
    if share < 1:
        missing = 1_000_000 - reached
        classes["unmatched"] = Counted(tensors=8, parameters=missing, bytes=2 * missing)
        left_out = (LeftOut(what="experts", tensors=8, parameters=missing, code="unmatched"),)
    fields = {"ref": ref, "parameters": 1_050_100, "covered": reached, "share": share, "classes": classes, "left_out": left_out}
    return Coverage.model_validate(fields | changes)


def hostile_coverage(ref: str = HOSTILE) -> Coverage:
    """Make a coverage in which every text contains HTML."""
    part = LeftOut(what=HOSTILE, tensors=1, parameters=750_000, code="unmatched")
    return coverage(ref, left_out=(part,), files_not_read=(NotRead(path=HOSTILE, code="outside"),))


def covering(report: _Report, *shares: float) -> _Report:
    """Copy the report with a coverage of these shares, one for each checkpoint."""
    refs = [*report.subject().values()]
    if isinstance(report, ParentsReport):
        refs = [report.checkpoint.ref, *(each.ref for each in report.candidates)]
    covered: Class = "compared" if report.analyzer in ("sparsity", "parents") else "read"
    made = (coverage(ref, share, covered) for ref, share in zip(refs, shares, strict=True))
    return report.model_copy(update={"coverage": tuple(made)})


def stacked(report: ParentsReport, first: str, second: str) -> ParentsReport:
    """Copy the report with the verdict that four layers come from ``first`` and the last two from ``second``."""
    layers = [MovedLayer(layer=None, ref=first, source=None, equal_share=1.0)]
    layers += [MovedLayer(layer=n, ref=first, source=n, equal_share=1.0) for n in range(4)]
    layers += [MovedLayer(layer=n, ref=second, source=n - 2, equal_share=0.99) for n in (4, 5)]
    return report.model_copy(update={"verdict": "stack", "parents": (first, second), "layer_map": tuple(layers)})
