"""The tables of compare: a summary, then those of the reports that it is composed of."""

from collections.abc import Iterator
from dataclasses import replace
from operator import attrgetter
from typing import Any

from analyzers.columns import Table
from analyzers.compare.report import CompareReport
from analyzers.core import rows
from analyzers.coverage import COVERAGE
from analyzers.parents import columns as parents
from analyzers.update_sparsity import SparsityReport


def _summary(report: CompareReport) -> Iterator[dict[str, Any]]:
    yield {
        **report.subject(),
        **report.relation.model_dump(exclude={"sources", "sentence"}),
        "statement": report.relation.sentence,
        "sources": ", ".join(report.relation.sources),
        "mode": report.mode,
        "coverage": report.covered_share,
    }


def _of_part(name: str, table: Table) -> Table:
    """Return a table of the report ``name``, empty if there is none."""
    part = attrgetter(name)
    columns = table.columns

    def rows(report: Any) -> Any:
        return table.rows(part(report)) if part(report) is not None else ()

    return replace(
        table,
        key=f"{name}_{table.key}",
        rows=rows,
        columns=(lambda report: columns(part(report)) if part(report) is not None else ()) if callable(columns) else columns,
    )


TABLES = (
    Table("summary", _summary),
    *(_of_part("parents", table) for table in parents.TABLES),
    *(_of_part("sparsity", table) for table in (*rows.tables(SparsityReport), *SparsityReport.DERIVED, *COVERAGE)),
)
