"""Tables on the page, sorted and searched by exact values and displayed with few digits."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from components.text.markup import table

if TYPE_CHECKING:
    import gradio as gr

# A row's values for sorting, and the texts displayed in their place.
Line = tuple[list[Any], list[str]]
_Report = TypeVar("_Report")


class Column(NamedTuple):
    """A heading, its width in pixels, and whether the column is numeric."""

    name: str
    width: int
    numeric: bool


class DataTable(Generic[_Report]):
    """A table of a report, most important columns first: about 1,100 pixels are visible on a 1280-pixel screen.

    label: for screen readers; name: element id; lines: the rows of a report.
    """

    def __init__(self, label: str, name: str, columns: Sequence[Column], lines: Callable[[_Report], Iterable[Line]]) -> None:
        self.label = label
        self._name = name
        self._columns = columns
        self._lines = lines
        self._headings = [column.name for column in columns]
        self._numeric = frozenset(i for i, column in enumerate(columns) if column.numeric)

    def build(self) -> "gr.Dataframe":
        """An empty table. Call inside a page."""
        import gradio as gr  # imported late: the command line uses only the rows

        numeric = ", ".join(f'[data-heading="{i}"]' for i in sorted(self._numeric))
        style = f"<style>#{self._name} th:is({numeric}) .header-content {{ justify-content: flex-end; }}</style>"
        gr.HTML(style, elem_classes="m-plain m-style")
        return gr.Dataframe(
            headers=self._headings,
            datatype=["number" if column.numeric else "str" for column in self._columns],  # "str" is escaped, which "auto" does not promise
            column_widths=[f"{column.width}px" for column in self._columns],
            interactive=False,
            label=self.label,
            show_label=False,
            show_search="search",
            max_height=520,
            buttons=[],
            elem_id=self._name,
            elem_classes="m-rows",
        )

    def value(self, report: _Report) -> dict[str, Any]:
        """The table's value on the page."""
        return self._value(list(self._lines(report)))

    def nothing(self) -> dict[str, Any]:
        """The value of an empty table."""
        return self._value([])

    def html(self, report: _Report) -> str:
        """The same rows as HTML, as displayed."""
        return table(self._headings, (read for _, read in self._lines(report)), self._numeric)

    def _value(self, lines: Sequence[Line]) -> dict[str, Any]:
        style = ["text-align: right" if column.numeric else "" for column in self._columns]
        return {
            "headers": self._headings,
            "data": [values for values, _ in lines],
            "metadata": {"display_value": [read for _, read in lines], "styling": [style for _ in lines]},
        }
