"""The table of matrices that were decomposed."""

from collections.abc import Iterator
from typing import Any

from analyzers.update_sparsity.report import SparsityReport, Spectrum
from components.results.data_table import Column, DataTable, Line
from components.text import numbers
from components.text.plain_text import shown

_MEASURES = (
    "Stable rank",
    "Effective rank",
    "Spectral drift",
    "Angle, left",
    "Mean, left",
    "Angle, right",
    "Mean, right",
    "In principal mask",
    "In low-magnitude mask",
)
_COLUMNS = (Column("Matrix", 318, False), Column("Shape", 104, False), *(Column(name, 46 + 7 * len(name), True) for name in _MEASURES))


def _lines(report: SparsityReport) -> Iterator[Line]:
    return ((_values(row), _read(row)) for row in report.spectral)


def _values(row: Spectrum) -> list[Any]:
    return [
        shown(row.name),
        numbers.shape(row.shape),
        row.stable_rank,
        row.effective_rank,
        row.nss,
        row.largest_angle_left,
        row.mean_angle_left,
        row.largest_angle_right,
        row.mean_angle_right,
        row.principal_overlap,
        row.low_magnitude_overlap,
    ]


def _read(row: Spectrum) -> list[str]:
    return [
        shown(row.name),
        numbers.shape(row.shape),
        numbers.magnitude(row.stable_rank),
        numbers.magnitude(row.effective_rank),
        numbers.magnitude(row.nss),
        *map(_degrees, (row.largest_angle_left, row.mean_angle_left, row.largest_angle_right, row.mean_angle_right)),
        numbers.share(row.principal_overlap),
        numbers.share(row.low_magnitude_overlap),
    ]


def _degrees(angle: float | None) -> str:
    return numbers.NOTHING if angle is None else f"{angle:.3g}°"


SPECTRAL = DataTable("Singular values and subspaces", "m-spectral", _COLUMNS, _lines)
