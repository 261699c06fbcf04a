"""Declares the table of compared tensors, of which a page shows a part."""

import heapq
import math
from dataclasses import replace
from typing import Any

from analyzers import limits
from analyzers.precision_variants.columns import TENSORS
from analyzers.precision_variants.report import PrecisionReport
from components.results.tables import Sortable


def left_out(report: PrecisionReport) -> int:
    """Count the rows omitted: a page shows at most `limits.REPORT_TENSORS`."""
    return max(0, sum(len(variant.tensors) for variant in report.variants.values()) - limits.REPORT_TENSORS)


def _rows(report: PrecisionReport) -> list[Any]:
    """Return all rows by variant, in the order computed, or those with the largest errors if there are too many."""
    rows = list(TENSORS.rows(report))
    if left_out(report):
        largest = heapq.nlargest(limits.REPORT_TENSORS, range(len(rows)), key=lambda index: _size(rows[index]))
        rows = [rows[index] for index in sorted(largest)]
    return rows


def _size(row: Any) -> float:
    return math.inf if row["rms_rel"] is None else float(row["rms_rel"])


LARGEST = Sortable(replace(TENSORS, rows=_rows), "m-tensors")
