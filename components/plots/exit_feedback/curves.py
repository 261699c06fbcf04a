"""Cosines by layer and by loss, and training curves of the small transformer under each signal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from analyzers.exit_feedback.signals import EXACT, FROZEN
from components.exit.text import cosine, mean, spread, style
from components.plots.marks import line, marked
from components.plots.style import layout
from components.text import numbers

if TYPE_CHECKING:
    from plotly.graph_objects import Figure, Scatter

    from analyzers.exit_feedback.report import ExitReport
    from analyzers.exit_feedback.results import Distribution

# Layer numbers, and markers of a training curve, that fit on a narrow screen.
_TICKS, _MARKERS = 8, 9


def layers(report: "ExitReport") -> "Figure":
    """The mean cosine of every signal at each layer through the logit lens."""
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


def loss_bins(report: "ExitReport") -> "Figure":
    """The mean cosine of every signal over the fifths of the tokens, from the lowest loss to the highest."""
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


def training_losses(report: "ExitReport") -> "Figure":
    """The loss of the small transformer at each step, under each signal."""
    rows = [(row.method, row.losses, ["" if loss is None else f"{loss:.3f}" for loss in row.losses]) for row in report.training]
    return _training(report, rows, "loss", "loss, nats")


def training_cosines(report: "ExitReport") -> "Figure":
    """The mean cosine of each signal with the exact gradient at each step."""
    rows = [(row.method, row.cosines, [cosine(each) for each in row.cosines]) for row in report.training if row.method != FROZEN]
    return _training(report, rows, "mean cosine", "mean cosine")


def signal_line(
    name: str, x: Sequence[float], y: Sequence[float | None], hover: str, details: Sequence[Sequence[str]] = (), **changes: Any
) -> "Scatter":
    """A line in the style of a signal. Only some of many markers are drawn. See `line`."""
    drawn = marked(style(name))
    settings = {
        "line": {"color": drawn["color"], "dash": drawn["dash"], "width": 2.6 if name == EXACT else 2},
        "marker": {"symbol": drawn["symbol"], "size": 7, "color": drawn["color"], "maxdisplayed": _MARKERS},
    }
    return line(name, x, y, style(name), hover, details, **settings | changes)


def _training(report: "ExitReport", rows: Sequence[tuple[str, Sequence[float | None], Sequence[str]]], of: str, title: str) -> "Figure":
    hover = f"step %{{x}}<br>{of} %{{customdata[0]}}"
    traces = [signal_line(name, report.training_steps, values, hover, [[each] for each in details]) for name, values, details in rows]
    figure = _figure(traces, title)
    figure.update_xaxes(title="training step", nticks=8)
    return figure


def _figure(traces: "list[Scatter]", title: str) -> "Figure":
    from plotly.graph_objects import Figure

    figure = Figure(traces, layout(350))
    figure.update_yaxes(title=title, nticks=6)
    return figure


def _mean(found: "Distribution | None") -> float | None:
    return None if found is None else found.mean


def _said(found: "Distribution | None", norm_ratio: float | None) -> list[str]:
    return [mean(found), spread(found), numbers.magnitude(norm_ratio)]
