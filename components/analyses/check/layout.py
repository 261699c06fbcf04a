"""Lays out the result of check, and asks its question."""

from analyzers.check.report import CheckReport
from components.analyses.question import Question
from components.result.layout import Layout, Tab, Table
from components.text import numbers


def narrower(report: CheckReport) -> tuple[int, str] | None:
    """Return the bytes of a lossless copy in fewer bytes and what is known of its values, or None if there is none."""
    wide = next((finding for finding in report.findings if finding.rule == "upcast"), None)
    if wide is None:
        return None
    known = f"Every value was read: {numbers.plural(len(wide.tensors), 'tensor')} can be narrower, and the rest keeps its format."
    return report.checkpoint.bytes - wide.saving_bytes, known


LAYOUT = Layout("Check of an upload", (Tab("Findings", [Table("findings")]), Tab("Rules", [Table("rules")])), narrower=narrower)

QUESTION = Question(
    heading="Will this upload load, and is it what it claims?",
    about="Reads every byte of a model and reports what its users would stumble over: files that do not load, weights that are not finite, "
    "values stored wider than needed or twice, norms never trained and, compared with a base, what is missing or unchanged.",
    button="Check",
    examples={
        "tiny-bf16-as-fp32": {"model": "sample:tiny-bf16-as-fp32"},
        "tiny-tuned, of tiny-bf16": {"model": "sample:tiny-tuned", "base": "sample:tiny-bf16"},
        "google-t5/t5-small": {"model": "google-t5/t5-small"},
    },
    front=("base",),
    less="the check without a base",
)
