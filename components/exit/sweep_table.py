"""The table of the sweep: every signal at every setting and seed."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from components.exit.names import cosine, mean, spread
from components.results.data_table import Column, DataTable, Line
from components.text import numbers
from components.text.plain_text import shown

if TYPE_CHECKING:
    from analyzers.exit_feedback.report import ExitReport

_COLUMNS = (
    Column("Signal", 150, False),
    Column("Setting", 88, False),
    Column("Value", 78, True),
    Column("Seed", 70, True),
    Column("Mean cosine", 112, True),
    Column("80% of tokens", 146, True),
    Column("Of all at once", 118, True),
    Column("Norm ratio", 100, True),
    Column("Best scale", 100, True),
    Column("Is", 84, False),
)


def _lines(report: "ExitReport") -> Iterator[Line]:
    """Settings first, then seeds alone; the null is a signal like any other."""
    for row in sorted(report.sweep, key=lambda row: row.parameter == "seed"):
        name, kind = shown(row.method), "ceiling" if row.ceiling else "null" if row.null else "signal"
        found = row.cosine
        exact = (
            None if found is None else found.mean,
            None if found is None else found.p10,
            row.total_cosine,
            row.norm_ratio,
            row.best_scale,
        )
        yield (
            [name, row.parameter, row.value, row.seed, *exact, kind],
            [
                *(name, row.parameter, numbers.count(row.value), str(row.seed), mean(found), spread(found), cosine(row.total_cosine)),
                *(numbers.magnitude(row.norm_ratio), numbers.magnitude(row.best_scale), kind),
            ],
        )


SWEEP = DataTable("Sweep", "m-sweep-table", _COLUMNS, _lines)
