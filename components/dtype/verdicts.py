"""Gives the four short answers of the passport, as a card shows them."""

from analyzers.dtype_detection import DtypeReport
from components.dtype.text import lineage_answer, risk, stored_answer, trained_answer
from components.results.layout import Verdict
from components.site import stored_results


def verdicts(report: DtypeReport) -> list[Verdict]:
    """Return the answers of the four tiles, each with the kind of its evidence."""
    passed_through, kind = lineage_answer(report)
    return [
        Verdict("Stored as", stored_answer(report), "fact", "fact"),
        Verdict("Passed through", passed_through, kind, "not decided" if kind == "undecided" else kind),
        Verdict("Trained in", *trained_answer(report, stored_results.consensus(report.checkpoint.ref))),
        Verdict("Safe in fp16", *risk(report)),
    ]
