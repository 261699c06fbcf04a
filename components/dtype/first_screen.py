"""The first page before anything is asked for: a finished example, and the questions that the other pages answer."""

from functools import cache
from pathlib import Path

from analyzers import ANALYZERS
from analyzers.dtype_detection import DtypeReport, DtypeRequest, analyze
from components.dtype.result import passport
from components.look.navigation import OTHERS
from components.text.render import render

_EXAMPLE = "sample:tiny-bf16-as-fp32"
# The spectrum is drawn in a box of this height, one unit wide per exponent.
_HEIGHT = 40


def first_screen() -> str:
    """The passport of a built-in sample, computed here, and a link with a picture to every other page, as HTML."""
    report = example()
    pages = [
        (each.title, f"{each.question[:1].upper()}{each.question[1:]}?", each.address, _picture(each.name))
        for each in ANALYZERS.values()
        if each.address
    ]
    pages += [(title, about, address, "") for title, (address, about) in OTHERS.items()]
    return render(
        "dtype/templates/first_screen.html",
        model=report.checkpoint.ref,
        passport=passport(report),
        bars=_bars(report),
        height=_HEIGHT,
        first=report.exponents[0].exponent,
        last=report.exponents[-1].exponent,
        pages=pages,
    )


@cache
def example() -> DtypeReport:
    """The passport of the example. A few hundred milliseconds."""
    *_, report = analyze(DtypeRequest(model=_EXAMPLE))
    assert isinstance(report, DtypeReport)  # the last item of an analysis
    return report


def _bars(report: DtypeReport) -> list[tuple[int, str]]:
    """The spectrum of the weights: the place and the height of each bar."""
    first, most = report.exponents[0].exponent, max(row.count for row in report.exponents)
    return [(row.exponent - first, f"{_HEIGHT * row.count / most:.2f}") for row in report.exponents]


def _picture(analyzer: str) -> str:
    """The picture of an analyzer's page, SVG; empty if it has none."""
    folder = Path(str(ANALYZERS[analyzer].component("form").__file__)).parent
    path = folder / "templates/picture.svg"
    return path.read_text(encoding="utf-8") if path.exists() else ""
