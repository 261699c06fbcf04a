"""The table of tensors that were compared."""

from collections.abc import Iterator
from typing import Any

from analyzers.update_sparsity.report import SparsityReport, TensorRow
from components.results.data_table import Column, DataTable, Line
from components.sparsity.names import read_whole
from components.text import numbers
from components.text.names import tensor_name
from components.text.plain_text import html, shown

_COLUMNS = (
    Column("Name", 318, False),
    Column("Role", 98, False),
    Column("Sparsity", 92, True),
    Column("By the probe", 116, True),
    Column("Rows changed", 120, True),
    Column("Columns changed", 140, True),
    Column("|update| / |base|", 136, True),
    Column("Changed", 104, True),
    Column("Largest update", 124, True),
    Column("Lost to rounding", 124, True),
    Column("Dtypes", 110, False),
    Column("Shape", 112, False),
    Column("In the tuned checkpoint", 318, False),
)


def about_tensors(report: SparsityReport) -> str:
    """The caption of the table, in HTML."""
    if report.tensors_aggregated:
        what = "Too many tensors to list: one row for each layer and role."
    else:
        what = f"{numbers.plural(len(report.tensors), 'tensor')} compared."
    sampled = "" if read_whole(report) else " Counts and norms are of what was read; changed rows and columns need exact mode."
    return f'<p class="m-caption">{html(what)} Sort by the menu of a heading; type to search.{sampled}</p>'


def _values(row: TensorRow) -> list[Any]:
    return [
        tensor_name(row),
        row.role,
        row.sparsity,
        row.probe_sparsity,
        row.changed_rows,
        row.changed_columns,
        row.relative_norm,
        row.num_changed,
        row.max_update,
        row.swallowed,
        _dtypes(row),
        shown(numbers.shape(row.shape), 60),
        shown(row.tuned_name),
    ]


def _read(row: TensorRow) -> list[str]:
    return [
        tensor_name(row),
        shown(row.role),
        numbers.share(row.sparsity) if row.values_read else "not read",
        numbers.share(row.probe_sparsity),
        numbers.share(row.changed_rows),
        numbers.share(row.changed_columns),
        numbers.share(row.relative_norm),
        numbers.count(row.num_changed) if row.values_read else numbers.NOTHING,
        numbers.magnitude(row.max_update),
        numbers.count(row.swallowed) if row.values_read else numbers.NOTHING,
        _dtypes(row),
        shown(numbers.shape(row.shape), 60),
        shown(row.tuned_name) if row.tuned_name != row.name else "the same",
    ]


def _dtypes(row: TensorRow) -> str:
    return shown(row.dtype if row.dtype == row.tuned_dtype else f"{row.dtype} → {row.tuned_dtype}")


def _lines(report: SparsityReport) -> Iterator[Line]:
    return ((_values(row), _read(row)) for row in report.tensors)


TENSORS = DataTable("Tensors", "m-tensors", _COLUMNS, _lines)
