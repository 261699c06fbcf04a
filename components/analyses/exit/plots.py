"""Draws the figures of exit feedback: cosines by token and by setting, and cost."""

from __future__ import annotations

from collections.abc import Sequence
from math import log10
from statistics import fmean
from typing import Any, Literal

import plotly.graph_objects as go

from analyzers.core.formatting import cosine
from analyzers.exit.report import ExitReport
from analyzers.exit.signals import EXACT, NULL, RANDOM
from analyzers.exit.words import signal_name
from components.plots.marks import error_bars, line, mark_rows, marked, shortened
from components.plots.style import LIMIT, layout, legend, text
from components.text import numbers

# Styles of `plots.marks.marked` by number, the same in every figure. References for the signals are grey.
_STYLES = {
    "dense": 0, "hybrid": 8, "parallel": 1, "parallel_gold": 3, "parallel_topmass": 4, "span": 2, "svd": 6, "true_rows": 7,
    EXACT: 5, NULL: 23,
}  # fmt: skip
_ROW = 44
# Most characters next to the axis on a narrow screen.
_NAME = 20


def at_head(report: ExitReport) -> go.Figure | None:
    """Draw the cosines of each signal with the exact gradient at the head: the median, with bars from 10% to 90% of the tokens."""
    known = {name: method.cosine for name, method in report.methods.items() if method.cosine is not None}
    if not known:
        return None
    figure = go.Figure(layout=layout(64 + _ROW * len(known)))
    for place, (name, cosines) in enumerate(known.items()):
        hover = f"mean {cosine(cosines.mean)}<br>10%, 50%, 90%: {cosine(cosines.p10)}, {cosine(cosines.p50)}, {cosine(cosines.p90)}"
        bars = error_bars([cosines.p50], [cosines.p10], [cosines.p90], marked(_style(name))["color"])
        figure.add_trace(line(name, [cosines.p50], [place], _style(name), hover, mode="markers", error_x=bars))
    figure.add_shape(type="line", yref="paper", y0=0, y1=1, x0=0, x1=0, line=LIMIT)
    figure.update_xaxes(title="cosine with the exact gradient", range=[-1.02, 1.02], tickvals=(-1, -0.5, 0, 0.5, 1))
    axis = {"range": [len(known) - 0.5, -0.5], "showgrid": False, "automargin": True}
    return figure.update_yaxes(
        tickvals=list(range(len(known))), ticktext=[text(shortened(signal_name(name), _NAME)) for name in known], **axis
    )


def _style(name: str) -> int:
    return _STYLES.get(name, 0)


_PARAMETERS = {"rank": "rank r", "k": "k", "anchors": "anchors m"}
# Height of a panel and of the gap between two, which holds an axis title, in pixels; smallest ratio of neighbouring ticks.
_PANEL, _BETWEEN, _NEAR = 230, 78, 1.6


def sweep(report: ExitReport) -> go.Figure | None:
    """Draw a panel for each parameter: the mean cosine of every signal that has it, with bars from the smallest to the largest of several
    seeds; and lines without markers for signals without the parameter or random codes, and for the null.
    """
    from plotly.subplots import make_subplots

    panels = {parameter: swept for parameter in _PARAMETERS if (swept := _swept(report, parameter))}
    if not panels:
        return None
    count = len(panels)
    base: dict[str, Any] = layout(66 + count * _PANEL + (count - 1) * _BETWEEN)
    figure = make_subplots(rows=count, cols=1, vertical_spacing=_BETWEEN / (base["height"] - 60) if count > 1 else None)
    figure.update_layout(base)
    figure.update_xaxes(**base["xaxis"])
    figure.update_yaxes(**base["yaxis"], title="mean cosine", nticks=6)
    levels = {name: [method.cosine.mean] for name, method in report.methods.items() if method.cosine and name not in RANDOM}
    levels |= {NULL: list(report.null.values)} if report.null is not None else {}
    drawn: set[str] = set()
    for row, (parameter, swept) in enumerate(panels.items(), 1):
        values = sorted({value for seeds in swept.values() for value in seeds})
        constant = {name: {values[0]: seeds, values[-1]: seeds} for name, seeds in levels.items() if name not in swept}
        for name, by_value in (swept | constant).items():
            trace = _swept_line(name, by_value, text(_PARAMETERS[parameter]), thin=name in constant)
            figure.add_trace(trace.update(legendgroup=text(name), showlegend=name not in drawn), row, 1)
            drawn.add(name)
        ticks = [value for value, larger in zip(values, [*values[1:], values[-1] * 9], strict=True) if larger / value >= _NEAR]
        ends = [log10(values[0]) - 0.1, log10(values[-1]) + 0.1]
        axis = {"title": _PARAMETERS[parameter], "type": "log", "range": ends, "tickangle": 0}
        figure.update_xaxes(**axis, tickvals=ticks, ticktext=[f"{tick:,}" for tick in ticks], row=row, col=1)
    return legend(figure)


def _swept(report: ExitReport, parameter: str) -> dict[str, dict[int, list[float]]]:
    """Return the mean cosines of a sweep: method -> value of the parameter -> one for each seed."""
    cosines: dict[str, dict[int, list[float]]] = {}
    for row in report.sweep:
        if row.parameter == parameter and row.cosine is not None:
            cosines.setdefault(row.method, {}).setdefault(row.value, []).append(row.cosine.mean)
    return cosines


def _swept_line(name: str, by_value: dict[int, list[float]], parameter: str, thin: bool) -> go.Scatter:
    values = sorted(by_value)
    means = [fmean(by_value[value]) for value in values]
    details = [
        [cosine(fmean(seeds)), f"{len(seeds)}: {cosine(min(seeds))} to {cosine(max(seeds))}"] for _, seeds in sorted(by_value.items())
    ]
    hover = f"{parameter} %{{x:,}}<br>mean cosine %{{customdata[0]}}<br>seeds: %{{customdata[1]}}"
    bars = error_bars(
        means, [min(by_value[value]) for value in values], [max(by_value[value]) for value in values], marked(_style(name))["color"]
    )
    return _signal_line(name, values, means, hover, details, **({"mode": "lines", "line_width": 1.3} if thin else {"error_y": bars}))


def _signal_line(
    name: str, x: Sequence[float], y: Sequence[float | None], hover: str, details: Sequence[Sequence[str]], **changes: Any
) -> go.Scatter:
    """Make a line in the style of a signal, with only some of its markers if there are many. See `line`."""
    return line(signal_name(name), x, y, _style(name), hover, details).update(marker_maxdisplayed=9).update(changes)


# Label -> name of the form in the report.
_FORMS = {"all logits at once": "whole", "in chunks": "chunked"}


def seconds(report: ExitReport) -> go.Figure | None:
    """Draw the milliseconds for loss and gradients, whole and chunked."""
    return _cost(report, "seconds", 1e3, "milliseconds", lambda value: f"{value:.3g} ms")


def memory(report: ExitReport) -> go.Figure | None:
    """Draw the megabytes allocated in addition to weights and inputs."""
    return _cost(report, "peak_bytes", 1e-6, "MB", lambda value: numbers.size(round(value * 1e6)))


def _cost(report: ExitReport, field: Literal["seconds", "peak_bytes"], scale: float, title: str, formatted: Any) -> go.Figure | None:
    rows = report.cost.rows
    measured = {label: {row.method: scale * getattr(row, field) for row in rows if row.form == form} for label, form in _FORMS.items()}
    names = list(dict.fromkeys(row.method for row in rows))
    return mark_rows(measured, names, title, formatted, signal_name) if names else None
