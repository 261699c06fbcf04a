"""Renders a finished example for the first page, before the first run."""

from functools import cache

from analyzers.dtype_detection import DtypeReport, DtypeRequest, analyze
from components.dtype.result import passport
from components.text import render

_EXAMPLE = "sample:tiny-bf16-as-fp32"
# The spectrum is drawn in a box of this height, one unit wide per exponent.
_HEIGHT = 40


def first_screen() -> str:
    """Render the passport of a built-in sample, computed by this app, as HTML."""
    report = example()
    return render(
        "dtype/templates/first_screen.html",
        model=report.checkpoint.ref,
        passport=passport(report),
        bars=_bars(report),
        height=_HEIGHT,
        first=report.exponents[0].exponent,
        last=report.exponents[-1].exponent,
    )


@cache
def example() -> DtypeReport:
    """Compute the passport of the example, in a few hundred milliseconds."""
    *_, report = analyze(DtypeRequest(model=_EXAMPLE))
    assert isinstance(report, DtypeReport)  # the last item of an analysis
    return report


def _bars(report: DtypeReport) -> list[tuple[int, str]]:
    """Return the spectrum of the weights: the position and the height of each bar."""
    first, most = report.exponents[0].exponent, max(row.count for row in report.exponents)
    return [(row.exponent - first, f"{_HEIGHT * row.count / most:.2f}") for row in report.exponents]
