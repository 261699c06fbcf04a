"""Representability: which formats hold how many of the weights exactly, as bars with their shares and intervals."""

from collections.abc import Mapping

from analyzers.base import Interval
from analyzers.dtype_detection import DtypeReport
from components.text import numbers
from components.text.plain_text import html

_FORMATS = {"fp16": "fp16", "bf16": "bf16", "tf32": "tf32", "fp8_e4m3": "fp8 e4m3", "fp8_e5m2": "fp8 e5m2"}
_OTHERS = {"zero": "zero", "fp16_underflow": "nonzero, but zero in fp16", "fp16_subnormal": "subnormal in fp16"}
_PREFIX = "representable."


def representable(report: DtypeReport) -> str:
    """A row per format: the share of the finite nonzero values it holds exactly; then, for a sample, what else was estimated."""
    rows = []
    for key, share in report.representable.model_dump().items():
        interval = report.intervals.get(_PREFIX + key)
        rows.append(_row(_FORMATS.get(key, key), interval.estimate if interval else share, _bounds(interval)))
    known = {_PREFIX + key for key in report.representable.model_dump()}
    others = "".join(
        _row(_OTHERS.get(key, key), interval.estimate, _bounds(interval), bar=False)
        for key, interval in report.intervals.items()
        if key not in known
    )
    between = (
        "" if not others else '<tbody><tr><th scope="colgroup" colspan="4" class="m-between">Of all values</th></tr>' + others + "</tbody>"
    )
    head = f'<thead><tr><th scope="colgroup" colspan="4">Nonzero values held exactly by{_whether(report.intervals)}</th></tr></thead>'
    return f'<table class="m-table m-held">{head}<tbody>{"".join(rows)}</tbody>{between}</table>'


def _whether(intervals: Mapping[str, Interval]) -> str:
    return " (of the whole checkpoint, with 95% intervals)" if intervals else ""


def _bounds(interval: Interval | None) -> str:
    """The interval in HTML: on a narrow screen it breaks between its bounds only."""
    return "" if interval is None else f"<span>{numbers.share(interval.low)} to</span> <span>{numbers.share(interval.high)}</span>"


def _row(name: str, share: float | None, bounds: str, bar: bool = True) -> str:
    # the number stands beside it: for those who listen the bar would only say it again
    meter = f'<meter min="0" max="1" value="{share:.6f}" aria-hidden="true"></meter>' if bar and share is not None else ""
    where = (
        f'<th scope="row">{html(name)}</th><td class="m-meter">{meter}</td>' if bar else f'<th scope="row" colspan="2">{html(name)}</th>'
    )
    return f'<tr>{where}<td class="m-n">{numbers.share(share)}</td><td class="m-n m-bounds">{bounds}</td></tr>'
