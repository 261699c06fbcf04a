"""Coverage and conversions made by hand, for tests of what is said about them."""

from typing import Any, TypeVar

from analyzers.base import Report
from analyzers.coverage import Class, Counted, Coverage, LeftOut, NotRead
from analyzers.parents.report import Conversion, MovedLayer, ParentsReport, Relation
from tests.components.dtype_reports import HOSTILE

_Report = TypeVar("_Report", bound=Report)


def coverage(ref: str, share: float = 0.25, covered: Class = "compared", **changes: Any) -> Coverage:
    """A checkpoint of a million weights and some tied and buffered elements; ``share`` of it is covered, the rest has no counterpart."""
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
        left_out = (LeftOut(what="experts", tensors=8, parameters=missing, why="of another shape"),)
    fields = {"ref": ref, "parameters": 1_050_100, "covered": reached, "share": share, "classes": classes, "left_out": left_out}
    return Coverage.model_validate(fields | changes)


def hostile_coverage(ref: str = HOSTILE) -> Coverage:
    """A coverage in which every text tries to be HTML."""
    part = LeftOut(what=HOSTILE, tensors=1, parameters=750_000, why=HOSTILE)
    return coverage(ref, left_out=(part,), files_not_read=(NotRead(path=HOSTILE, why=HOSTILE),))


def covering(report: _Report, *shares: float) -> _Report:
    """The report with a coverage of these shares, one for each checkpoint."""
    refs = [*report.subject().values()]
    if isinstance(report, ParentsReport):
        refs = [report.checkpoint.ref, *(each.ref for each in report.candidates)]
    made = (coverage(ref, share, report.covers) for ref, share in zip(refs, shares, strict=True))
    return report.model_copy(update={"coverage": tuple(made)})


def converted(name: str, relation: Relation = "equal", **changes: Any) -> Conversion:
    """A row of the table how each tensor got here."""
    fields = {"name": name, "sources": (name,), "form": "as stored", "relation": relation, "values": 64, "exceptions": 0}
    return Conversion.model_validate(fields | changes)


def stacked(report: ParentsReport, first: str, second: str) -> ParentsReport:
    """The report with the verdict that four layers are ``first``'s and two are ``second``'s last ones."""
    layers = [MovedLayer(layer=None, ref=first, source=None, equal_share=1.0)]
    layers += [MovedLayer(layer=n, ref=first, source=n, equal_share=1.0) for n in range(4)]
    layers += [MovedLayer(layer=n, ref=second, source=n - 2, equal_share=0.99) for n in (4, 5)]
    changes = {"verdict": "stack", "statement": f"A stack of {first} and {second}.", "parents": (first, second), "layer_map": tuple(layers)}
    return report.model_copy(update=changes)
