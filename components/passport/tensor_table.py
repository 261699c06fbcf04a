"""The table of tensors below a passport."""

from collections.abc import Iterator
from typing import Any

from analyzers.dtype_detection import DtypeReport
from analyzers.dtype_detection.report import TensorRow
from components.results.data_table import Column, DataTable, Line
from components.text import numbers
from components.text.names import tensor_name
from components.text.plain_text import html, shown

_COLUMNS = (
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


def about_tensors(report: DtypeReport) -> str:
    """The caption of the table, in HTML."""
    if report.tensors_aggregated:
        what = f"{numbers.count(report.selected_tensors)} tensors, too many to list: one row for each layer and role."
    else:
        what = f"{numbers.plural(len(report.tensors), 'tensor')}."
    sampled = "" if report.extremes.exact else " Norms of tensors read in part are scaled up from what was read."
    return f'<p class="m-caption">{html(what)} Sort by the menu of a heading; type to search.{sampled}</p>'


def _values(row: TensorRow) -> list[Any]:
    seen = row.values_read > 0
    return [
        tensor_name(row),
        row.lineage.verdict,
        row.abs_max,
        row.norm,
        row.zero if seen else None,
        row.fossil_rows if seen else None,
        row.dtype,
        shown(numbers.shape(row.shape), 60),
        row.abs_min_nonzero,
        row.role,
    ]


def _read(row: TensorRow) -> list[str]:
    seen = row.values_read > 0
    return [
        tensor_name(row),
        row.lineage.verdict if seen else "not read",
        numbers.magnitude(row.abs_max),
        numbers.magnitude(row.norm),
        numbers.count(row.zero) if seen else numbers.NOTHING,
        numbers.count(row.fossil_rows) if seen else numbers.NOTHING,
        shown(row.dtype),
        shown(numbers.shape(row.shape), 60),
        numbers.magnitude(row.abs_min_nonzero),
        shown(row.role),
    ]


def _lines(report: DtypeReport) -> Iterator[Line]:
    return ((_values(row), _read(row)) for row in report.tensors)


TENSORS = DataTable("Tensors", "m-tensors", _COLUMNS, _lines)
