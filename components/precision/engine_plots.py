"""Draws an engine's log-probabilities against the reference's, with the band of bf16."""

from __future__ import annotations

import plotly.graph_objects as go

from analyzers.precision_variants.engine.measurements import TokenDifference
from analyzers.precision_variants.report import PrecisionReport
from components.plots.marks import line, marked
from components.plots.style import GREY, label, layout, text

SERIES = ("bf16 run", "engine")


def tokens(report: PrecisionReport) -> go.Figure:
    """Draw log p - log p of the reference for each token, of the engine and of the bf16 run. The band holds 99% of the bf16 run's."""
    assert report.engine is not None
    engine, figure = report.engine, go.Figure(layout=layout(360))
    known = [each for each in engine.tokens if each.engine is not None]
    by_name = {
        "bf16 run": [each.bf16 - each.reference for each in known],
        "engine": [(each.engine or 0) - each.reference for each in known],
    }
    along = [each.reference for each in known]
    for style, (name, differences) in enumerate(by_name.items()):
        details = [
            [_token(each), f"{each.reference:.4g}", f"{difference:+.3g}"] for each, difference in zip(known, differences, strict=True)
        ]
        hover = "%{customdata[0]}<br>log p in fp32: %{customdata[1]}<br>difference: %{customdata[2]} nats"
        marker = {"size": 5, "opacity": 0.7}
        figure.add_trace(line(name, along, differences, style, hover, details, mode="markers", marker=_marker(style) | marker))
    band = engine.bf16.p99
    figure.add_hrect(y0=-band, y1=band, fillcolor=GREY, opacity=0.18, line_width=0, layer="below")
    label(figure, "99% of the bf16 run", xref="paper", x=1, xanchor="right", y=band, yanchor="bottom")
    figure.update_xaxes(title="log p in fp32, nats")
    figure.update_yaxes(title="difference from fp32, nats")
    return figure


def _marker(style: int) -> dict[str, object]:
    drawn = marked(style)
    return {"symbol": drawn["symbol"], "color": drawn["color"]}


def _token(each: TokenDifference) -> str:
    return f"{text(repr(each.text)) if each.text else each.token}, token {each.position} of sequence {each.sequence}"
