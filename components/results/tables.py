"""Draws the tables of reports on the page and in documents; sortable ones are sorted and searched by exact values."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from analyzers.core.columns import Column, Table
from analyzers.core.formatting import powers
from components.text import shown, table

if TYPE_CHECKING:
    import gradio as gr

# Most columns of a table in the normal type size.
_FEW = 7
# Pixels of the narrowest column of a sortable table, which holds ten characters: a number that is cut off is another number.
_NARROWEST = 92


def listed(declared: Table, report: Any, rows: Iterable[Any] | None = None, caption: str | None = None) -> str:
    """Render a table as HTML; "" if it has no rows. On a narrow screen a table of words has the cells of a row below each other.

    rows: the rows to show, by default all; caption: by default the table's title.
    """
    columns = declared.shown(report, "page")
    cells = [[column.text_of(row) for column in columns] for row in (declared.rows(report) if rows is None else rows)]
    titles = [powers(column.title) for column in columns]
    above = declared.title if caption is None else caption
    return table(titles, cells, _numeric(columns), above, stacked=True, dense=len(columns) > _FEW) if cells else ""


def _numeric(columns: Sequence[Column]) -> frozenset[int]:
    return frozenset(index for index, column in enumerate(columns) if column.text is not None)


class Sortable:
    """A sortable table on the page. name: element id.

    The most important columns come first, since about 1,100 pixels are visible on a 1280-pixel screen.
    """

    def __init__(self, declared: Table, name: str) -> None:
        self.label = declared.title
        self._declared = declared
        self._name = name
        self._columns = declared.shown(None, "page")
        self._titles = [column.title for column in self._columns]

    def of(self, part: Callable[[Any], Any]) -> "Sortable":
        """Return this table for a report that contains such a report, ``part(report)``."""
        return Sortable(replace(self._declared, rows=lambda report: self._declared.rows(part(report))), self._name)

    def build(self) -> "gr.Dataframe":
        """Lay out an empty table. Call inside a page."""
        import gradio as gr  # imported late because the command line uses only the rows

        numeric = ", ".join(f'[data-heading="{i}"]' for i in sorted(_numeric(self._columns)))
        style = f"<style>#{self._name} th:is({numeric}) .header-content {{ justify-content: flex-end; }}</style>"
        gr.HTML(style, elem_classes="m-plain m-style")
        return gr.Dataframe(
            headers=self._titles,
            datatype=["str" if column.text is None else "number" for column in self._columns],  # "auto" may not escape text
            column_widths=[f"{column.width or max(_NARROWEST, 44 + 7 * len(column.title))}px" for column in self._columns],
            interactive=False,
            label=self.label,
            show_label=False,
            show_search="search",
            max_height=520,
            buttons=[],
            elem_id=self._name,
            elem_classes="m-rows",
        )

    def value(self, report: Any) -> dict[str, Any]:
        """Return the table's value on the page; without a report, that of an empty table."""
        rows = [] if report is None else list(self._declared.rows(report))
        style = ["text-align: right" if column.text is not None else "" for column in self._columns]
        return {
            "headers": self._titles,
            "data": [[self._value(column, row) for column in self._columns] for row in rows],
            "metadata": {"display_value": self._texts(rows), "styling": [style for _ in rows]},
        }

    def html(self, report: Any) -> str:
        """Render the rows for a document."""
        return table(self._titles, self._texts(self._declared.rows(report)), _numeric(self._columns))

    def _texts(self, rows: Iterable[Any]) -> list[list[str]]:
        return [[shown(column.text_of(row), column.longest) for column in self._columns] for row in rows]

    @staticmethod
    def _value(column: Column, row: Any) -> Any:
        value = column.value_of(row)
        return shown(value, column.longest) if isinstance(value, str) else value
