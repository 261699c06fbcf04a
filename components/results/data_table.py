"""Tables on the page that are sorted and searched by their exact values, and read in few digits."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from components.text.markup import table

if TYPE_CHECKING:
    import gradio as gr

# Of one row the values to sort by, and the texts to read in their place.
Line = tuple[list[Any], list[str]]
_Report = TypeVar("_Report")


class Column(NamedTuple):
    """A heading, its width in pixels, and whether what stands below are numbers."""

    name: str
    width: int
    numeric: bool


class DataTable(Generic[_Report]):
    """A table of a report. What matters most stands first: at 1280 pixels about 1,100 of its width are in sight.

    label: what a screen reader calls it; name: its element id; lines: the rows of a report.
    """

    def __init__(self, label: str, name: str, columns: Sequence[Column], lines: Callable[[_Report], Iterable[Line]]) -> None:
        self._label = label
        self._name = name
        self._columns = columns
        self._lines = lines
        self._headings = [column.name for column in columns]
        self._numeric = frozenset(i for i, column in enumerate(columns) if column.numeric)

    def build(self) -> "gr.Dataframe":
        """An empty table. Call inside a page."""
        import gradio as gr  # here, for the command line has the lines alone

        numeric = ", ".join(f'[data-heading="{i}"]' for i in sorted(self._numeric))
        style = f"<style>#{self._name} th:is({numeric}) .header-content {{ justify-content: flex-end; }}</style>"
        gr.HTML(style, elem_classes="m-plain m-style")
        return gr.Dataframe(
            headers=self._headings,
            datatype=["number" if column.numeric else "str" for column in self._columns],  # "str" is escaped, which "auto" does not promise
            column_widths=[f"{column.width}px" for column in self._columns],
            interactive=False,
            label=self._label,
            show_label=False,
            show_search="search",
            max_height=520,
            buttons=[],
            elem_id=self._name,
            elem_classes="m-rows",
        )

    def value(self, report: _Report) -> dict[str, Any]:
        """The value of the table on the page."""
        return self._value(list(self._lines(report)))

    def nothing(self) -> dict[str, Any]:
        """Its value without a row."""
        return self._value([])

    def html(self, report: _Report) -> str:
        """The same rows in HTML, as they are read."""
        return table(self._headings, (read for _, read in self._lines(report)), self._numeric)

    def _value(self, lines: Sequence[Line]) -> dict[str, Any]:
        style = ["text-align: right" if column.numeric else "" for column in self._columns]
        return {
            "headers": self._headings,
            "data": [values for values, _ in lines],
            "metadata": {"display_value": [read for _, read in lines], "styling": [style for _ in lines]},
        }
