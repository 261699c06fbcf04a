"""Tables on the page, sorted and searched by exact values and displayed with few digits."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from analyzers.base import Report
from components.text import numbers
from components.text.markup import table
from components.text.plain_text import shown

if TYPE_CHECKING:
    import gradio as gr

_Report = TypeVar("_Report", bound=Report)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its heading, and its width in pixels.

    value: what is sorted by, the attribute of a row or a function of the row, whose text is safe to show. show: how a number is written;
    without it the column is text. read: what is displayed of a row, where the value alone does not say.
    """

    name: str
    width: int
    value: str | Callable[[Any], Any]
    show: Callable[[Any], str] | None = None
    read: Callable[[Any], str] | None = None

    @property
    def numeric(self) -> bool:
        """Whether it is aligned and sorted as numbers."""
        return self.show is not None

    def value_of(self, row: Any) -> Any:
        """What ``row`` is sorted by."""
        if not isinstance(self.value, str):
            return self.value(row)
        value = getattr(row, self.value)
        return shown(value) if isinstance(value, str) else value

    def text_of(self, row: Any) -> str:
        """What is displayed of ``row``."""
        if self.read is not None:
            return self.read(row)
        value = self.value_of(row)
        return self.show(value) if self.show is not None else str(value)


def optional(show: Callable[[Any], str]) -> Callable[[Any], str]:
    """``show``, with a dash for nothing."""
    return lambda value: numbers.NOTHING if value is None else show(value)


class DataTable(Generic[_Report]):
    """A table of a report, most important columns first: about 1,100 pixels are visible on a 1280-pixel screen.

    label: for screen readers; name: element id; rows: what the columns read.
    """

    def __init__(self, label: str, name: str, columns: Sequence[Column], rows: Callable[[_Report], Iterable[Any]]) -> None:
        self.label = label
        self._name = name
        self._columns = columns
        self._rows = rows
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
        return self._value(list(self._rows(report)))

    def nothing(self) -> dict[str, Any]:
        """The value of an empty table."""
        return self._value([])

    def html(self, report: _Report) -> str:
        """The same rows as HTML, as displayed."""
        return table(self._headings, ([column.text_of(row) for column in self._columns] for row in self._rows(report)), self._numeric)

    def _value(self, rows: Sequence[Any]) -> dict[str, Any]:
        style = ["text-align: right" if column.numeric else "" for column in self._columns]
        return {
            "headers": self._headings,
            "data": [[column.value_of(row) for column in self._columns] for row in rows],
            "metadata": {
                "display_value": [[column.text_of(row) for column in self._columns] for row in rows],
                "styling": [style for _ in rows],
            },
        }
