"""Cosines by layer and by loss, and training curves of the small transformer under each signal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from analyzers.exit_feedback.signals import FROZEN
from components.exit.text import cosine, mean, spread
from components.plots.exit_feedback.lines import line
from components.plots.style import layout
from components.text import numbers

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from analyzers.exit_feedback.report import ExitReport

# Layer numbers that fit on a narrow screen.
_TICKS = 8


def layers(report: "ExitReport") -> "Figure":
    """The mean cosine of every signal at each layer through the logit lens."""
    from plotly.graph_objects import Figure

    figure = Figure(layout=layout(340))
    for name in report.methods:
        rows = sorted((row for row in report.layers if row.method == name), key=lambda row: row.layer)
        said = [
            [mean(row.cosine), spread(row.cosine), numbers.magnitude(row.norm_ratio), mean(row.before_norm_cosine), f"{row.loss:.3f}"]
            for row in rows
        ]
        hover = (
            "layer %{x}, loss %{customdata[4]}<br>mean cosine %{customdata[0]}, 80%: %{customdata[1]}<br>norm ratio %{customdata[2]}"
            "<br>before the norm %{customdata[3]}"
        )
        means = [None if row.cosine is None else row.cosine.mean for row in rows]
        figure.add_trace(line(name, [row.layer for row in rows], means, hover, said))
    seen = sorted({row.layer for row in report.layers})
    figure.update_xaxes(title="layer", tickvals=seen[:: max(1, -(-len(seen) // _TICKS))], showgrid=False)
    figure.update_yaxes(title="mean cosine", nticks=6)
    return figure


def loss_bins(report: "ExitReport") -> "Figure":
    """The mean cosine of every signal over the fifths of the tokens, from the lowest loss to the highest."""
    from plotly.graph_objects import Figure

    figure = Figure(layout=layout(340))
    for name, method in report.methods.items():
        said = [
            [
                mean(row.cosine),
                spread(row.cosine),
                numbers.magnitude(row.norm_ratio),
                numbers.share(row.exact_energy),
                f"{row.tokens:,}",
                f"{row.low:.3g} to {row.high:.3g}",
            ]
            for row in method.loss_bins
        ]
        hover = (
            "loss %{customdata[5]}: %{customdata[4]} tokens<br>mean cosine %{customdata[0]}, 80%: %{customdata[1]}"
            "<br>norm ratio %{customdata[2]}<br>%{customdata[3]} of the exact gradient's energy"
        )
        means = [None if row.cosine is None else row.cosine.mean for row in method.loss_bins]
        figure.add_trace(line(name, list(range(1, len(means) + 1)), means, hover, said))
    rows = next(iter(report.methods.values())).loss_bins if report.methods else ()
    named = [f"{row.low:.2g}<br>to {row.high:.2g}" for row in rows]
    figure.update_xaxes(title="loss of the token, nats", tickvals=list(range(1, len(rows) + 1)), ticktext=named, showgrid=False)
    figure.update_yaxes(title="mean cosine", nticks=6)
    figure.update_layout(margin_b=62)
    return figure


def training_losses(report: "ExitReport") -> "Figure":
    """The loss of the small transformer at each step, under each signal."""
    rows = [(row.method, row.losses, [f"{loss:.3f}" if loss is not None else "" for loss in row.losses]) for row in report.training]
    return _training(report, rows, "loss, nats", "loss %{customdata[0]}")


def training_cosines(report: "ExitReport") -> "Figure":
    """The mean cosine of each signal with the exact gradient at each step."""
    rows = [(row.method, row.cosines, [cosine(each) for each in row.cosines]) for row in report.training if row.method != FROZEN]
    return _training(report, rows, "mean cosine", "mean cosine %{customdata[0]}")


def _training(report: "ExitReport", rows: Sequence[tuple[str, Sequence[float | None], Sequence[str]]], title: str, hover: str) -> Any:
    from plotly.graph_objects import Figure

    figure = Figure(layout=layout(360))
    for name, values, read in rows:
        figure.add_trace(line(name, report.training_steps, values, f"step %{{x}}<br>{hover}", [[each] for each in read]))
    figure.update_xaxes(title="training step", nticks=8, showgrid=False)
    figure.update_yaxes(title=title, nticks=6)
    return figure
