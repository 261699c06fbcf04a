"""The tables of check."""

from collections.abc import Iterator
from typing import Any

from analyzers.check.report import LEVELS, CheckReport, Finding
from analyzers.columns import Column, Table
from analyzers.coverage import COVERAGE


def _summary(report: CheckReport) -> Iterator[dict[str, Any]]:
    yield {
        "model": report.checkpoint.ref,
        "commit": report.checkpoint.short_commit(),
        "base": report.base.ref if report.base else None,
        **{f"{level}_findings": report.count(level) for level in LEVELS[::-1]},
        "bytes": report.checkpoint.bytes,
        "saving_bytes": report.saving_bytes,
        "coverage": report.covered_share,
    }


TABLES = (
    Table("summary", _summary),
    # Files have the number of tensors instead of their names.
    Table(
        "findings",
        lambda report: report.findings,
        (Column("tensors", value=lambda row: len(row.tensors)),),
        files=Finding.model_fields,
    ),
    *COVERAGE,
)
