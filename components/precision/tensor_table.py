"""The table of everything that was compared."""

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
    Column("What", 150, False),
    Column("Layer", 70, True),
    Column("Error", 92, True),
    Column("Spread", 172, True),
    Column("Not finite", 96, True),
    Column("Largest", 96, True),
    Column("Bias", 96, True),
    Column("Slope", 92, True),
    Column("Correlation", 108, True),
    Column("Residual", 96, True),
    Column("rms", 92, True),
    Column("rms of reference", 132, True),
    Column("Elements", 106, True),
)


def left_out(report: "PrecisionReport") -> int:
    """How many rows are not in the table: a page bears so many as a report has of one variant."""
    return max(0, sum(len(variant.tensors) for variant in report.variants.values()) - limits.REPORT_TENSORS)


def _lines(report: "PrecisionReport") -> Iterator[Line]:
    """Variant by variant, in the order computed."""
    rows = [(name, row) for name, variant in report.variants.items() for row in variant.tensors]
    if left_out(report):
        kept = heapq.nlargest(limits.REPORT_TENSORS, range(len(rows)), key=lambda place: _size(rows[place][1]))
        rows = [rows[place] for place in sorted(kept)]
    return (_line(name, row, report.reference.layers) for name, row in rows)


def _size(row: "TensorError") -> float:
    return math.inf if row.rms_rel is None else row.rms_rel


def _line(variant: str, row: "TensorError", layers: int) -> Line:
    what, measures = KINDS[row.kind], (row.max, row.bias, row.slope, row.correlation, row.residual, row.rms, row.ref_rms)
    spread = numbers.NOTHING if row.low is None or row.high is None else f"{numbers.share(row.low)} to {numbers.share(row.high)}"
    exactly = [f"{each:.7g}" if each is not None else numbers.NOTHING for each in (row.slope, row.correlation)]
    layer = numbers.NOTHING if row.layer is None else short_layer(row.layer, layers)
    name = shown(row.name)
    return (
        [variant, name, what, row.layer, row.rms_rel, row.low, row.nonfinite, *measures, row.elements],
        [
            *(variant, name, what, layer, numbers.share(row.rms_rel), spread, numbers.count(row.nonfinite)),
            *(numbers.magnitude(row.max), numbers.magnitude(row.bias), *exactly),
            *(*map(numbers.magnitude, (row.residual, row.rms, row.ref_rms)), numbers.count(row.elements)),
        ],
    )


TENSORS = DataTable("Tensors", "m-tensors", _COLUMNS, _lines)
