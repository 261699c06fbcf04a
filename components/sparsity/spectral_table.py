"""The table of matrices that were taken apart."""

from typing import Any

import gradio as gr

from analyzers.update_sparsity.report import SparsityReport, Spectrum
from components.data_table import Column, DataTable
from components.plain_text import shown
from components.sparsity.tables import SPECTRUM, spectrum

_NAME, _SHAPE, *_MEASURES = SPECTRUM
_TABLE = DataTable((Column(_NAME, 318, False), Column(_SHAPE, 104, False), *(Column(name, 46 + 7 * len(name), True) for name in _MEASURES)))


def build_spectral_table() -> gr.Dataframe:
    """An empty table. Call inside a page."""
    return _TABLE.build("Matrices taken apart", "m-spectral")


def spectral_rows(report: SparsityReport) -> dict[str, Any]:
    """The value of the table."""
    return _TABLE.value((_values(row), list(spectrum(row))) for row in report.spectral)


def _values(row: Spectrum) -> list[Any]:
    return [
        shown(row.name),
        " x ".join(map(str, row.shape)),
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
