"""Draws the mean cosine against rank, k and anchors, with the ceilings and the null."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10
from statistics import fmean
from typing import Any

import plotly.graph_objects as go

from analyzers.core.formatting import cosine
from analyzers.exit_feedback.report import ExitReport
from analyzers.exit_feedback.signals import NULL, RANDOM
from analyzers.exit_feedback.words import settings
from components.exit.plots import signal_line
from components.exit.text import style
from components.plots.marks import error_bars, marked
from components.plots.style import layout, text

# Method -> value of a parameter -> mean cosine of each seed.
Swept = Mapping[str, Mapping[int, Sequence[float]]]

PARAMETERS = {"rank": "rank r", "k": "k", "anchors": "anchors m"}
# Height of a panel and of the gap between two, which holds an axis title, in pixels.
_PANEL, _BETWEEN = 230, 78
# Margin beyond the smallest and the largest value, as a factor; smallest ratio of neighbouring ticks.
_MARGIN, _NEAR = 1.25, 1.6
_BAND = "rgba(124,130,141,0.28)"


def sweep(report: ExitReport) -> go.Figure:
    """Draw a panel for each parameter: the mean cosine of every signal that has the parameter, with bars over seeds; lines without markers
    for signals without the parameter or random codes; a band for the null.
    """
    from plotly.subplots import make_subplots

    panels = {parameter: found for parameter in PARAMETERS if (found := _swept(report, parameter))}
    count = max(1, len(panels))
    base: dict[str, Any] = layout(66 + count * _PANEL + (count - 1) * _BETWEEN)
    within = base["height"] - base["margin"]["t"] - base["margin"]["b"]
    figure = make_subplots(rows=count, cols=1, vertical_spacing=_BETWEEN / within if count > 1 else None)
    figure.update_layout(base)
    figure.update_xaxes(**base["xaxis"])
    known = [seed for found in panels.values() for rows in found.values() for seeds in rows.values() for seed in seeds]
    known += [method.cosine.mean for method in report.methods.values() if method.cosine is not None]
    span = [min(-0.05, *known) - 0.03, max(known) + 0.04] if known else [-0.08, 1.04]
    figure.update_yaxes(**base["yaxis"], title="mean cosine", nticks=6, range=span)
    for row, (parameter, found) in enumerate(panels.items(), 1):
        values = sorted({value for rows in found.values() for value in rows})
        x = [values[0] / _MARGIN, *values, values[-1] * _MARGIN]
        figure.add_traces([*_null(report, found, values, x), *_level(report, found, x), *_lines(parameter, found)], row, 1)
        ticks = _ticks(values)
        figure.update_xaxes(
            title=PARAMETERS[parameter],
            type="log",
            range=[log10(x[0]), log10(x[-1])],
            tickvals=ticks,
            ticktext=[f"{tick:,}" for tick in ticks],
            tickangle=0,
            row=row,
            col=1,
        )
    return figure


def _swept(report: ExitReport, parameter: str) -> dict[str, dict[int, list[float]]]:
    cosines: dict[str, dict[int, list[float]]] = {}
    for row in report.sweep:
        if row.parameter == parameter and row.cosine is not None:
            cosines.setdefault(row.method, {}).setdefault(row.value, []).append(row.cosine.mean)
    return cosines


def _ticks(values: Sequence[int]) -> list[int]:
    """Select the values that fit as labels, including the largest."""
    ticks: list[int] = []
    for value in reversed(values):
        if not ticks or ticks[-1] / value >= _NEAR:
            ticks.append(value)
    return ticks[::-1]


def _lines(parameter: str, found: Swept) -> list[go.Scatter]:
    """Draw the signals with the parameter, with error bars from the smallest to the largest of several seeds."""
    drawn = []
    for name, rows in found.items():
        if name == NULL:
            continue
        values = sorted(rows)
        lows, highs, means = ([of(rows[value]) for value in values] for of in (min, max, fmean))
        details = [[cosine(mean), _seeds(rows[value])] for mean, value in zip(means, values, strict=True)]
        bars = error_bars(means, lows, highs, marked(style(name))["color"])
        several = {"error_y": bars} if any(len(rows[value]) > 1 for value in values) else {}
        hover = f"{text(parameter)} %{{x:,}}<br>mean cosine %{{customdata[0]}}%{{customdata[1]}}"
        drawn.append(signal_line(name, values, means, hover, details, **several))
    return drawn


def _level(report: ExitReport, found: Swept, x: Sequence[float]) -> list[go.Scatter]:
    """Draw the signals without the parameter and without random codes as constant lines."""
    drawn = []
    for name, method in report.methods.items():
        if name in found or name in RANDOM or method.cosine is None:
            continue
        hover = f"{text(settings(report.methods[name].settings))}<br>mean cosine {cosine(method.cosine.mean)}"
        thin = {"color": marked(style(name))["color"], "dash": marked(style(name))["dash"], "width": 1.3}
        drawn.append(signal_line(name, x, [method.cosine.mean] * len(x), hover, mode="lines", line=thin))
    return drawn


def _null(report: ExitReport, found: Swept, values: Sequence[int], x: Sequence[float]) -> list[go.Scatter]:
    """Draw the range of the null over seeds and a line for its mean: at each value, or constant if it does not have the parameter."""
    rows = found.get(NULL) or (dict.fromkeys(values, report.null.values) if report.null is not None else {})
    if not rows:
        return []
    points = sorted(rows)
    x = [x[0], *points, x[-1]]
    ends = [rows[points[0]], *(rows[value] for value in points), rows[points[-1]]]
    lows, highs, means = ([of(each) for each in ends] for of in (min, max, fmean))
    band: dict[str, Any] = {
        "mode": "lines",
        "line": {"width": 0},
        "fill": "toself",
        "fillcolor": _BAND,
        "hoverinfo": "skip",
        "cliponaxis": True,
    }
    details = [[cosine(mean), cosine(low), cosine(high)] for mean, low, high in zip(means, lows, highs, strict=True)]
    hover = "codes drawn anew for every batch<br>mean cosine %{customdata[0]}<br>from %{customdata[1]} to %{customdata[2]}"
    return [
        signal_line(NULL, [*x, *reversed(x)], [*highs, *reversed(lows)], "", **band),
        signal_line(NULL, x, means, hover, details, mode="lines"),
    ]


def _seeds(values: Sequence[float]) -> str:
    return f"<br>{len(values)} seeds: {cosine(min(values))} to {cosine(max(values))}" if len(values) > 1 else ""
