"""The report as pandas tables."""

from typing import TYPE_CHECKING

from analyzers.account import coverage_tables
from analyzers.check.report import LEVELS, CheckReport, Finding
from analyzers.extras import extras_explained
from analyzers.tables import frame

if TYPE_CHECKING:
    import pandas


@extras_explained()
def tables(report: CheckReport) -> "dict[str, pandas.DataFrame]":
    """``summary`` (one row), ``findings``, with the number of tensors in place of their names, and those of `coverage_tables`."""
    import pandas

    summary = {
        "model": report.checkpoint.ref,
        "commit": report.checkpoint.commit[:12],
        "base": report.base.ref if report.base else None,
        **{f"{level}_findings": report.count(level) for level in LEVELS[::-1]},
        "bytes": report.checkpoint.bytes,
        "saving_bytes": report.saving_bytes,
        "coverage": report.covered_share,
    }
    found = frame(report.findings, Finding)
    return {
        "summary": pandas.DataFrame([summary]),
        "findings": found.assign(tensors=found["tensors"].map(len)),
        **coverage_tables(report.coverage),
    }
