"""Distribution of cosines over tokens: a ridge for each signal, and its percentiles below."""

from typing import TYPE_CHECKING

from components.exit.text import cosine, style
from components.plots.marks import line, marked, shortened
from components.plots.style import LIMIT, layout, text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plotly.graph_objects import Figure, Scatter

    from analyzers.exit_feedback.report import ExitReport
    from analyzers.exit_feedback.results import Alignment

_ROW = 44
# Height of a ridge, and distance of the percentiles below its base, as shares of a row.
_RIDGE, _BELOW = 0.72, 0.13
# Characters that fit next to the axis on a narrow screen.
_NAME = 20


def at_head(report: "ExitReport") -> "Figure":
    """Cosines of signal and exact gradient at the head."""
    return _ridges(report.methods)


def before_norm(report: "ExitReport") -> "Figure":
    """The same before the final norm."""
    return _ridges({name: method.before_norm for name, method in report.methods.items()})


def _ridges(found: "Mapping[str, Alignment]") -> "Figure":
    from plotly.graph_objects import Figure

    figure = Figure(layout=layout(64 + _ROW * max(1, len(found))))
    for place, (name, alignment) in enumerate(found.items()):
        if alignment.cosine is not None:
            figure.add_traces([_ridge(name, alignment, place), _percentiles(name, alignment, place)])
    figure.add_shape(type="line", yref="paper", y0=0, y1=1, x0=0, x1=0, line=LIMIT)
    figure.update_xaxes(title="cosine with the exact gradient", range=[-1.02, 1.02], tickvals=(-1, -0.5, 0, 0.5, 1))
    figure.update_yaxes(
        tickvals=list(range(len(found))),
        ticktext=[text(shortened(name, _NAME)) for name in found],
        range=[len(found) - 1 + 0.35, -0.85],
        showgrid=False,
        automargin=True,
    )
    return figure


def _ridge(name: str, alignment: "Alignment", place: int) -> "Scatter":
    """A histogram, scaled so that the highest bin of every signal has the same height."""
    counts = alignment.histogram
    edges = [-1 + 2 * index / len(counts) for index in range(len(counts) + 1)]
    heights = [place - _RIDGE * count / max(1, *counts) for count in counts]
    x, y = [edge for edge in edges for _ in (0, 1)], [place, *(height for height in heights for _ in (0, 1)), place]
    outline = {"color": marked(style(name))["color"], "width": 1}
    return line(name, x, y, style(name), "", mode="lines", line=outline, fill="toself", opacity=0.55, hoverinfo="skip", cliponaxis=True)


def _percentiles(name: str, alignment: "Alignment", place: int) -> "Scatter":
    found = alignment.cosine
    assert found is not None
    color = marked(style(name))["color"]
    marker = {"symbol": ["line-ns-open", "circle", "diamond-open", "line-ns-open"], "size": [9, 8, 9, 9]}
    marker |= {"color": color, "line": {"width": 2, "color": color}}
    hover = f"mean {cosine(found.mean)}<br>10%, 50%, 90%: {cosine(found.p10)}, {cosine(found.p50)}, {cosine(found.p90)}"
    hover += f"<br>{alignment.tokens:,} tokens"
    x = [found.p10, found.p50, found.mean, found.p90]
    return line(name, x, [place + _BELOW] * 4, style(name), hover, line={"color": color, "width": 2}, marker=marker)
