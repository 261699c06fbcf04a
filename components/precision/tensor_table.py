"""The table of all compared tensors."""

import heapq
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from analyzers import limits
from components.precision.names import KINDS, short_layer
from components.results.data_table import Column, DataTable, Line
from components.text import numbers
from components.text.plain_text import shown

if TYPE_CHECKING:
    from analyzers.precision_variants.report import PrecisionReport, TensorError

_COLUMNS = (
    Column("Variant", 158, False),
    Column("Tensor", 310, False),
    Column("Kind", 150, False),
    Column("Layer", 70, True),
    Column("Shape", 118, False),
    Column("Error", 92, True),
    Column("Range", 172, True),
    Column("Max error", 102, True),
    Column("Not finite", 96, True),
    Column("Max |x - ref|", 116, True),
    Column("Bias", 96, True),
    Column("Slope", 92, True),
    Column("Correlation", 108, True),
    Column("Residual", 96, True),
    Column("rms", 92, True),
    Column("rms of reference", 132, True),
    Column("Elements", 106, True),
)


def left_out(report: "PrecisionReport") -> int:
    """The number of rows left out: a page shows at most `limits.REPORT_TENSORS`."""
    return max(0, sum(len(variant.tensors) for variant in report.variants.values()) - limits.REPORT_TENSORS)


def _lines(report: "PrecisionReport") -> Iterator[Line]:
    """All rows by variant, in the order computed."""
    rows = [(name, row) for name, variant in report.variants.items() for row in variant.tensors]
    if left_out(report):
        largest = heapq.nlargest(limits.REPORT_TENSORS, range(len(rows)), key=lambda index: _size(rows[index][1]))
        rows = [rows[index] for index in sorted(largest)]
    return (_line(name, row, report.reference.layers) for name, row in rows)


def _size(row: "TensorError") -> float:
    return math.inf if row.rms_rel is None else row.rms_rel


def _line(variant: str, row: "TensorError", layers: int) -> Line:
    kind, measures = KINDS[row.kind], (row.max, row.bias, row.slope, row.correlation, row.residual, row.rms, row.ref_rms)
    spread = numbers.NOTHING if row.low is None or row.high is None else f"{numbers.share(row.low)} to {numbers.share(row.high)}"
    exactly = [f"{value:.7g}" if value is not None else numbers.NOTHING for value in (row.slope, row.correlation)]
    shape = numbers.NOTHING if row.shape is None else "x".join(map(str, row.shape))
    layer = numbers.NOTHING if row.layer is None else short_layer(row.layer, layers)
    name = shown(row.name)
    return (
        [variant, name, kind, row.layer, shape, row.rms_rel, row.low, row.max_rel, row.nonfinite, *measures, row.elements],
        [
            *(variant, name, kind, layer, shape, numbers.share(row.rms_rel), spread, numbers.share(row.max_rel)),
            numbers.count(row.nonfinite),
            *(numbers.magnitude(row.max), numbers.magnitude(row.bias), *exactly),
            *(*map(numbers.magnitude, (row.residual, row.rms, row.ref_rms)), numbers.count(row.elements)),
        ],
    )


TENSORS = DataTable("Tensors", "m-tensors", _COLUMNS, _lines)
