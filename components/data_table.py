"""Tables on the page that are sorted and searched by their exact values, and read in few digits."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import gradio as gr


class Column(NamedTuple):
    """A heading, its width in pixels, and whether what stands below are numbers."""

    name: str
    width: int
    numeric: bool


class DataTable:
    """A table of these columns. What matters most stands first: at 1280 pixels about 1,100 of its width are in sight."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._style = ["text-align: right" if column.numeric else "" for column in columns]

    def build(self, label: str, name: str) -> gr.Dataframe:
        """An empty table with the element id ``name``. Call inside a page."""
        numeric = ", ".join(f'[data-heading="{i}"]' for i, column in enumerate(self._columns) if column.numeric)
        gr.HTML(f"<style>#{name} th:is({numeric}) .header-content {{ justify-content: flex-end; }}</style>", elem_classes="m-plain m-style")
        return gr.Dataframe(
            headers=[column.name for column in self._columns],
            datatype=["number" if column.numeric else "str" for column in self._columns],  # "str" is escaped, which "auto" does not promise
            column_widths=[f"{column.width}px" for column in self._columns],
            interactive=False,
            label=label,
            show_label=False,
            show_search="search",
            max_height=520,
            buttons=[],
            elem_id=name,
            elem_classes="m-rows",
        )

    def value(self, rows: Iterable[tuple[list[Any], list[str]]]) -> dict[str, Any]:
        """The value of the table. rows: of each the values to sort by, and the texts to read in their place."""
        pairs = list(rows)
        return {
            "headers": [column.name for column in self._columns],
            "data": [values for values, _ in pairs],
            "metadata": {"display_value": [read for _, read in pairs], "styling": [self._style for _ in pairs]},
        }
