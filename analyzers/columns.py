"""Tables, each declared once as a list of columns: terminal, page, documents, CSV and Parquet draw the same declaration."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from analyzers.extras import extras_explained
from analyzers.formatting import NOTHING
from analyzers.records import Record
from analyzers.terminal import columns

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    key: its name in files, and the field of a row that it holds, unless ``value`` names another (``interval.low``: a field of a field) or
    computes it. title: its heading for people; a column without a title is only in files. text: formats a number for people; a column
    without it holds text. cell: what people read of a row if the value alone does not say. only: for whom it is; others, files included,
    lack it. width: in pixels, in a sortable table of the page; by default that of the title. longest: characters of a cell there.
    """

    key: str
    title: str = ""
    text: Callable[[Any], str] | None = None
    value: str | Callable[[Any], Any] = ""
    cell: Callable[[Any], str] | None = None
    only: Literal["", "people", "page", "terminal"] = ""
    width: int = 0
    longest: int = 160

    def value_of(self, row: Any) -> Any:
        """What files hold and what is sorted by: None if it is unknown, as if a field on the way to it is None or a dict lacks it."""
        if callable(self.value):
            return self.value(row)
        for name in (self.value or self.key).split("."):
            if row is not None:
                row = row.get(name) if isinstance(row, dict) else getattr(row, name)
        return row

    def text_of(self, row: Any) -> str:
        """What people read of ``row``."""
        if self.cell is not None:
            return self.cell(row)
        value = self.value_of(row)
        return NOTHING if value is None else self.text(value) if self.text is not None else str(value)


def formatted(text: Callable[[Any], str], **titles: str) -> tuple[Column, ...]:
    """Columns of numbers of one format: the field and the title of each."""
    return tuple(Column(key, title, text) for key, title in titles.items())


def _tensor_name(row: Any) -> str:
    return row.name if row.tensors == 1 else f"{row.name} ({row.tensors:,} tensors)"


# The name of a row on tensors, which may cover several.
TENSOR_NAME = Column("name", "Name", width=318, cell=_tensor_name)


def shape_column(key: str, title: str) -> Column:
    """The shape of a tensor: ``2x3`` in files, ``2 x 3`` for people."""

    def written(row: Any, by: str) -> str | None:
        axes = Column(key).value_of(row)
        return None if axes is None else by.join(map(str, axes))

    return Column(key, title, value=lambda row: written(row, "x"), cell=lambda row: written(row, " x ") or NOTHING)


def _plain(value: Any) -> Any:
    """A record as a dict; anything else as it is."""
    return value.model_dump() if isinstance(value, Record) else value


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a report.

    key: its name as a file. rows: of a report; objects or dicts. columns: in the order in which people read them; a function if they
    depend on the report. files: the first columns of files, if those have an order of their own; one that is not declared is the field of
    its name. Every other column follows, unless it is only for people.
    Without columns and files, files have every item of the rows, which are dicts. title: its name on the page and in a terminal.
    """

    key: str
    rows: Callable[[Any], Iterable[Any]]
    columns: Sequence[Column] | Callable[[Any], Sequence[Column]] = ()
    files: Iterable[str] = ()
    title: str = ""

    def columns_of(self, report: Any) -> Sequence[Column]:
        """All columns for ``report``."""
        return self.columns(report) if callable(self.columns) else self.columns

    def shown(self, report: Any, where: Literal["page", "terminal"]) -> list[Column]:
        """The columns that people see."""
        return [column for column in self.columns_of(report) if column.title and column.only in ("", "people", where)]

    @extras_explained()
    def frame(self, report: Any) -> "pandas.DataFrame":
        """The table for programs: every value, even if there are no rows every column."""
        import pandas

        declared = {column.key: column for column in self.columns_of(report) if not column.only}
        held = {name: Column(name) for name in self.files} | declared
        rows = self.rows(report)
        lines = [{column.key: _plain(column.value_of(row)) for column in held.values()} for row in rows] if held else list(rows)
        return pandas.DataFrame(lines, columns=list(held) or None)

    def lines(self, report: Any, rows: Iterable[Any] | None = None) -> list[str]:
        """The table for a terminal; nothing if it has no rows. rows: those shown, by default all."""
        shown = self.shown(report, "terminal")
        cells = [tuple(column.text_of(row) for column in shown) for row in (self.rows(report) if rows is None else rows)]
        right = tuple(index for index, column in enumerate(shown) if column.text is not None)
        heading = [f"{self.title}:"] if self.title else []
        return [*heading, *columns([tuple(column.title for column in shown), *cells], right)] if cells else []
