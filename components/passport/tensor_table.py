"""The table of tensors under a passport."""

from typing import Any

import gradio as gr

from analyzers.dtype_detection import DtypeReport
from analyzers.dtype_detection.report import TensorRow
from components import numbers
from components.data_table import Column, DataTable
from components.plain_text import html, shown

_TABLE = DataTable(
    (
        Column("Name", 318, False),
        Column("Lineage", 152, False),
        Column("Largest", 84, True),
        Column("Norm", 84, True),
        Column("Zeros", 80, True),
        Column("Fossil rows", 114, True),
        Column("Dtype", 78, False),
        Column("Shape", 112, False),
        Column("Smallest > 0", 112, True),
        Column("Role", 100, False),
    )
)


def build_tensor_table() -> gr.Dataframe:
    """An empty table. Call inside a page."""
    return _TABLE.build("Tensors", "m-tensors")


def tensor_rows(report: DtypeReport) -> dict[str, Any]:
    """The value of the table."""
    return _TABLE.value((_values(row), _read(row)) for row in report.tensors)


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
