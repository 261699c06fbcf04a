"""Draws the figures of exit feedback except the sweep: cosines by token, layer and loss, energies, cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import plotly.graph_objects as go

from analyzers.core.formatting import cosine
from analyzers.exit_feedback.measurements import Alignment, Distribution
from analyzers.exit_feedback.report import ExitReport
from analyzers.exit_feedback.signals import CEILINGS, EXACT
from analyzers.exit_feedback.words import mean, signal_name, spread
from components.exit.text import style
from components.plots.marks import line, mark_rows, marked, shortened
from components.plots.style import LIMIT, layout, text
from components.text import numbers

_ROW = 44
# Height of a ridge and distance of the percentiles below its base, as shares of a row.
_RIDGE, _BELOW = 0.72, 0.13
# Most characters next to the axis on a narrow screen.
_NAME = 20


def at_head(report: ExitReport) -> go.Figure:
    """Draw the cosines of each signal with the exact gradient at the head."""
    return _ridges(report.methods)


def before_norm(report: ExitReport) -> go.Figure:
    """Draw the cosines of each signal with the exact gradient before the final norm."""
    return _ridges({name: method.before_norm for name, method in report.methods.items()})


def _ridges(found: Mapping[str, Alignment]) -> go.Figure:
    figure = go.Figure(layout=layout(64 + _ROW * max(1, len(found))))
    for place, (name, alignment) in enumerate(found.items()):
        if alignment.cosine is not None:
            figure.add_traces([_ridge(name, alignment, place), _percentiles(name, alignment, place)])
    figure.add_shape(type="line", yref="paper", y0=0, y1=1, x0=0, x1=0, line=LIMIT)
    figure.update_xaxes(title="cosine with the exact gradient", range=[-1.02, 1.02], tickvals=(-1, -0.5, 0, 0.5, 1))
    figure.update_yaxes(
        tickvals=list(range(len(found))),
        ticktext=[text(shortened(signal_name(name), _NAME)) for name in found],
        range=[len(found) - 1 + 0.35, -0.85],
        showgrid=False,
        automargin=True,
    )
    return figure


def _ridge(name: str, alignment: Alignment, place: int) -> go.Scatter:
    """Draw a histogram, scaled so that the highest bin of every signal has the same height; that of a ceiling is paler."""
    counts = alignment.histogram
    edges = [-1 + 2 * index / len(counts) for index in range(len(counts) + 1)]
    heights = [place - _RIDGE * count / max(1, *counts) for count in counts]
    x, y = [edge for edge in edges for _ in (0, 1)], [place, *(height for height in heights for _ in (0, 1)), place]
    outline = {"color": marked(style(name))["color"], "width": 1}
    filled = {"fill": "toself", "opacity": 0.2 if name in CEILINGS else 0.55, "hoverinfo": "skip", "cliponaxis": True}
    return line(name, x, y, style(name), "", mode="lines", line=outline, **filled)


def _percentiles(name: str, alignment: Alignment, place: int) -> go.Scatter:
    cosines = alignment.cosine
    assert cosines is not None
    color = marked(style(name))["color"]
    marker = {"symbol": ["line-ns-open", "circle", "diamond-open", "line-ns-open"], "size": [9, 8, 9, 9]}
    marker |= {"color": color, "line": {"width": 2, "color": color}}
    hover = f"mean {cosine(cosines.mean)}<br>10%, 50%, 90%: {cosine(cosines.p10)}, {cosine(cosines.p50)}, {cosine(cosines.p90)}"
    hover += f"<br>{alignment.tokens:,} tokens"
    x = [cosines.p10, cosines.p50, cosines.mean, cosines.p90]
    return line(name, x, [place + _BELOW] * 4, style(name), hover, line={"color": color, "width": 2}, marker=marker)


# Most layer numbers, and most markers of a line, on a narrow screen.
_TICKS, _MARKERS = 8, 9


def layers(report: ExitReport) -> go.Figure:
    """Draw the mean cosine of every signal at each layer through the logit lens."""
    hover = (
        "layer %{x}, loss %{customdata[4]}<br>mean cosine %{customdata[0]}, 80%: %{customdata[1]}<br>norm ratio %{customdata[2]}"
        "<br>before the norm %{customdata[3]}"
    )
    traces = []
    for name in report.methods:
        rows = sorted((row for row in report.layers if row.method == name), key=lambda row: row.layer)
        details = [[*_said(row.cosine, row.norm_ratio), mean(row.before_norm_cosine), f"{row.loss:.3f}"] for row in rows]
        traces.append(signal_line(name, [row.layer for row in rows], [_mean(row.cosine) for row in rows], hover, details))
    figure = _figure(traces, "mean cosine")
    seen = sorted({row.layer for row in report.layers})
    figure.update_xaxes(title="layer", tickvals=seen[:: max(1, -(-len(seen) // _TICKS))])
    return figure


def loss_bins(report: ExitReport) -> go.Figure:
    """Draw the mean cosine of every signal over the fifths of the tokens, from the lowest loss to the highest."""
    hover = (
        "loss %{customdata[5]}: %{customdata[4]} tokens<br>mean cosine %{customdata[0]}, 80%: %{customdata[1]}"
        "<br>norm ratio %{customdata[2]}<br>%{customdata[3]} of the exact gradient's energy"
    )
    traces = []
    for name, method in report.methods.items():
        details = [
            [*_said(row.cosine, row.norm_ratio), numbers.share(row.exact_energy), f"{row.tokens:,}", f"{row.low:.3g} to {row.high:.3g}"]
            for row in method.loss_bins
        ]
        means = [_mean(row.cosine) for row in method.loss_bins]
        traces.append(signal_line(name, list(range(1, len(means) + 1)), means, hover, details))
    figure = _figure(traces, "mean cosine")
    rows = next(iter(report.methods.values())).loss_bins if report.methods else ()
    bounds = [f"{row.low:.2g}<br>to {row.high:.2g}" for row in rows]
    figure.update_xaxes(title="loss of the token, nats", tickvals=list(range(1, len(rows) + 1)), ticktext=bounds)
    figure.update_layout(margin_b=62)
    return figure


def signal_line(
    name: str, x: Sequence[float], y: Sequence[float | None], hover: str, details: Sequence[Sequence[str]] = (), **changes: Any
) -> go.Scatter:
    """Make a line in the style of a signal, with only some of its markers if there are many. See `line`."""
    drawn = marked(style(name))
    settings = {
        "line": {"color": drawn["color"], "dash": drawn["dash"], "width": 2.6 if name == EXACT else 2},
        "marker": {"symbol": drawn["symbol"], "size": 7, "color": drawn["color"], "maxdisplayed": _MARKERS},
    }
    return line(name, x, y, style(name), hover, details, **settings | changes)


def _figure(traces: list[go.Scatter], title: str) -> go.Figure:
    figure = go.Figure(traces, layout(350))
    figure.update_yaxes(title=title, nticks=6)
    return figure


def _mean(found: Distribution | None) -> float | None:
    return None if found is None else found.mean


def _said(found: Distribution | None, norm_ratio: float | None) -> list[str]:
    return [mean(found), spread(found), numbers.magnitude(norm_ratio)]


# Label -> name of the form in the report.
FORMS = {"all logits at once": "whole", "in chunks": "chunked"}


def seconds(report: ExitReport) -> go.Figure:
    """Draw the milliseconds for loss and gradients, whole and chunked."""
    return mark_rows(_cost(report, "seconds", 1e3), _rows(report), "milliseconds", lambda value: f"{value:.3g} ms", signal_name)


def memory(report: ExitReport) -> go.Figure:
    """Draw the megabytes allocated in addition to weights and inputs."""
    return mark_rows(_cost(report, "peak_bytes", 1e-6), _rows(report), "MB", lambda value: numbers.size(round(value * 1e6)), signal_name)


def _cost(report: ExitReport, of: Literal["seconds", "peak_bytes"], scale: float) -> dict[str, dict[str, float | None]]:
    """Return a cost as label of a form -> method -> number."""
    rows = report.cost.rows
    return {name: {row.method: scale * getattr(row, of) for row in rows if row.form == form} for name, form in FORMS.items()}


def _rows(report: ExitReport) -> list[str]:
    return list(dict.fromkeys(row.method for row in report.cost.rows))
