"""The figure of magnitudes: the limits it marks."""

import pytest

from components.dtype import plots
from tests.components.dtype_reports import report


def test_spectrum_marks_and_names_the_limits() -> None:
    figure = plots.spectrum(report())
    named = {annotation.text: annotation.x for annotation in figure.layout.annotations}
    assert named["fp16 smallest subnormal 2⁻²⁴"] == -24
    assert named["fp16 smallest normal 2⁻¹⁴"] == -14
    assert named["fp16 largest 65504"] == pytest.approx(16, abs=1e-3)
    assert named["fp8 e4m3 largest 448"] == pytest.approx(8.8074, abs=1e-3)
    assert len(figure.layout.shapes) == len(named)
    assert sum(figure.data[0].y) == pytest.approx(100)
