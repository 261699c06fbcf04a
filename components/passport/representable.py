"""Representability: the fraction of weights each format represents exactly, as bars with shares and intervals."""

from typing import Any

from analyzers.base import Interval
from analyzers.dtype_detection import DtypeReport
from components.text import numbers
from components.text.render import render

_FORMATS = {"fp16": "fp16", "bf16": "bf16", "tf32": "tf32", "fp8_e4m3": "fp8 e4m3", "fp8_e5m2": "fp8 e5m2"}
_OTHERS = {"zero": "zero", "fp16_underflow": "nonzero, but zero in fp16", "fp16_subnormal": "subnormal in fp16"}
_PREFIX = "representable."


def representable(report: DtypeReport) -> str:
    """A row per format: the fraction of finite nonzero values it represents exactly; for a sample, also the other estimates."""
    known = {_PREFIX + key: share for key, share in report.representable.model_dump().items()}
    formats = []
    for key, share in known.items():
        interval = report.intervals.get(key)
        name = key.removeprefix(_PREFIX)
        formats.append(_row(_FORMATS.get(name, name), interval.estimate if interval else share, interval))
    others = [_row(_OTHERS.get(key, key), interval.estimate, interval) for key, interval in report.intervals.items() if key not in known]
    return render("passport/templates/representable.html", formats=formats, others=others, sampled=bool(report.intervals))


def _row(name: str, share: float | None, interval: Interval | None) -> dict[str, Any]:
    bounds = None if interval is None else (numbers.share(interval.low), numbers.share(interval.high))
    return {"name": name, "value": share, "share": numbers.share(share), "bounds": bounds}
