"""The table of tensors on the page: sorted and searched by its values, read in few digits."""

from typing import Any

import gradio as gr

from analyzers.dtype_detection import DtypeReport
from analyzers.dtype_detection.report import TensorRow
from components import numbers
from components.plain_text import html, shown

# Heading, width in pixels, whether it holds numbers. What matters most stands first: at 1280 pixels all of it is in sight.
_COLUMNS = (
    ("Name", 318, False),
    ("Lineage", 152, False),
    ("Largest", 84, True),
    ("Norm", 84, True),
    ("Zeros", 80, True),
    ("Fossil rows", 114, True),
    ("Dtype", 78, False),
    ("Shape", 112, False),
    ("Smallest > 0", 112, True),
    ("Role", 100, False),
)
_STYLES = ["text-align: right" if numeric else "" for _, _, numeric in _COLUMNS]


def build_tensor_table() -> gr.Dataframe:
    """An empty table. Call inside a page."""
    return gr.Dataframe(
        headers=[name for name, _, _ in _COLUMNS],
        datatype=["number" if numeric else "str" for _, _, numeric in _COLUMNS],  # "str" is escaped, which "auto" does not promise
        column_widths=[f"{width}px" for _, width, _ in _COLUMNS],
        interactive=False,
        label="Tensors",
        show_label=False,
        show_search="search",
        max_height=520,
        buttons=[],
        elem_classes="m-rows",
    )


def tensor_rows(report: DtypeReport) -> dict[str, Any]:
    """The value of the table: exact numbers to sort by, and beside each what is read in its place."""
    return {
        "headers": [name for name, _, _ in _COLUMNS],
        "data": [_values(row) for row in report.tensors],
        "metadata": {"display_value": [_read(row) for row in report.tensors], "styling": [_STYLES for _ in report.tensors]},
    }


def about_tensors(report: DtypeReport) -> str:
    """A sentence above the table, in HTML."""
    if report.tensors_aggregated:
        what = f"{numbers.count(report.selected_tensors)} tensors, too many to list: one row for each layer and role."
    else:
        what = f"{numbers.plural(len(report.tensors), 'tensor')}."
    sampled = "" if report.extremes.exact else " Norms of tensors read in part are scaled up from what was read."
    return f'<p class="m-caption">{html(what)} Sort by the menu of a heading; type to search.{sampled}</p>'


def _values(row: TensorRow) -> list[Any]:
    seen = row.values_read > 0
    return [
        _name(row),
        row.lineage.verdict,
        row.abs_max,
        row.norm,
        row.zero if seen else None,
        row.fossil_rows if seen else None,
        row.dtype,
        _shape(row),
        row.abs_min_nonzero,
        row.role,
    ]


def _read(row: TensorRow) -> list[str]:
    seen = row.values_read > 0
    return [
        _name(row),
        row.lineage.verdict if seen else "not read",
        numbers.magnitude(row.abs_max),
        numbers.magnitude(row.norm),
        numbers.count(row.zero) if seen else numbers.NOTHING,
        numbers.count(row.fossil_rows) if seen else numbers.NOTHING,
        shown(row.dtype),
        _shape(row),
        numbers.magnitude(row.abs_min_nonzero),
        shown(row.role),
    ]


def _name(row: TensorRow) -> str:
    name = shown(row.name)
    return name if row.tensors == 1 else f"{name} ({row.tensors:,} tensors)"


def _shape(row: TensorRow) -> str:
    return shown(" x ".join(map(str, row.shape)), 60) or numbers.NOTHING
