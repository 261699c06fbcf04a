"""Lays out the result of check."""

from analyzers.check.markdown import markdown
from analyzers.check.report import CheckReport
from components.forms.form import command, permalink
from components.results.answer import layout_of, short_table
from components.results.copy_offer import CopyOffer, on_hub
from components.results.layout import Tab
from components.text import numbers


def copy_offer(report: CheckReport) -> CopyOffer | None:
    """Offer what a finding proves: tensors whose values all fit a narrower format."""
    wide = next((each for each in report.findings if each.rule == "upcast"), None)
    if wide is None or not on_hub(report.checkpoint):
        return None
    known = f"Every value was read: {numbers.plural(len(wide.tensors), 'tensor')} can be narrower, and the rest keeps its format."
    return CopyOffer(report.checkpoint, report.checkpoint.bytes - wide.saving_bytes, known)


RESULT = layout_of(
    "Check of an upload",
    (Tab("Findings", [short_table(CheckReport, "findings")]), Tab("Rules", [short_table(CheckReport, "rules")])),
    permalink=permalink,
    command=command,
    markdown=markdown,
    copy=copy_offer,
)
