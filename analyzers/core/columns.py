"""Tables, each declared once as a list of columns, from which terminal, page, documents, CSV and Parquet are drawn."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from analyzers.core.extras import extras_explained
from analyzers.core.formatting import NOTHING
from analyzers.core.records import Record
from analyzers.core.terminal import columns

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    key: name in files, and the row's field with the value, unless ``value`` names another (``interval.low``: a field of a field) or
    computes it. title: heading for people; a column without one is only in files. help: what the heading means, in a sentence. text:
    formats a number for people; a column without it holds text. cell: writes what people read of a row, if the value alone does not
    suffice. only: "people" restricts the column to page and terminal, so that files lack it. longest: characters of a cell there.
    """

    key: str
    title: str = ""
    text: Callable[[Any], str] | None = None
    value: str | Callable[[Any], Any] = ""
    cell: Callable[[Any], str] | None = None
    only: Literal["", "people"] = ""
    longest: int = 320
    help: str = ""

    def value_of(self, row: Any) -> Any:
        """Return the value for files and for sorting; None if it, or a field on the path to it, is missing or None."""
        if callable(self.value):
            return self.value(row)
        path = self.value or self.key
        if isinstance(row, dict) and path in row:  # a key that is a model's or a variant's name, or a number, may have a point
            return row[path]
        for name in path.split("."):
            if row is not None:
                row = row.get(name) if isinstance(row, dict) else getattr(row, name)
        return row

    def text_of(self, row: Any) -> str:
        """Return the text that people read in this column of ``row``."""
        if self.cell is not None:
            return self.cell(row)
        value = self.value_of(row)
        return NOTHING if value is None else self.text(value) if self.text is not None else str(value)


def _plain(value: Any) -> Any:
    """Convert a record to a dict; return anything else unchanged."""
    return value.model_dump() if isinstance(value, Record) else value


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a report.

    key: file name. rows: returns the rows of a report, objects or dicts. columns: in reading order; a function if they depend on the
    report; files leave out those that are only for people. Without columns, files have every item of the rows, which are dicts. title:
    heading on the page and in a terminal.
    """

    key: str
    rows: Callable[[Any], Iterable[Any]]
    columns: Sequence[Column] | Callable[[Any], Sequence[Column]] = ()
    title: str = ""

    def columns_of(self, report: Any) -> Sequence[Column]:
        """Return all columns for ``report``."""
        return self.columns(report) if callable(self.columns) else self.columns

    def shown(self, report: Any, where: Literal["page", "terminal"]) -> list[Column]:
        """Return the columns that people see on the page or in a terminal. The page leaves out those with nothing in any row."""
        shown = [column for column in self.columns_of(report) if column.title]
        rows = list(self.rows(report)) if where == "page" else []
        return [column for column in shown if not rows or any(column.text_of(row) != NOTHING for row in rows)]

    @extras_explained()
    def frame(self, report: Any) -> "pandas.DataFrame":
        """Return the table for programs, with every value; an empty table still has every column."""
        import pandas

        declared = {column.key: column for column in self.columns_of(report) if not column.only}
        rows = self.rows(report)
        lines = [{key: _plain(column.value_of(row)) for key, column in declared.items()} for row in rows] if declared else list(rows)
        return pandas.DataFrame(lines, columns=list(declared) or None)

    def lines(self, report: Any) -> list[str]:
        """Draw the table for a terminal; empty if there are no rows."""
        shown = self.shown(report, "terminal")
        cells = [tuple(column.text_of(row) for column in shown) for row in self.rows(report)]
        right = tuple(index for index, column in enumerate(shown) if column.text is not None)
        heading = [f"{self.title}:"] if self.title else []
        return [*heading, *columns([tuple(column.title for column in shown), *cells], right)] if cells else []
