"""Conflict by batch size, and by activation."""

from typing import TYPE_CHECKING

from components.conflict.text import sides
from components.plots.gradient_conflict.lines import hover_interval, legend, line
from components.plots.style import exactly, layout
from components.text import numbers

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from analyzers.gradient_conflict.report import ConflictReport


def batches(report: "ConflictReport") -> "Figure":
    """Conflict between mean gradients by batch size, for units and for the whole gradient; single samples have size 1."""
    from plotly.graph_objects import Figure

    figure = Figure(layout=layout(340))
    for index, (name, found) in enumerate(sides(report)):
        model, rows = found.model, found.batch_curve
        sizes = [1, *(row.batch_size for row in rows)]
        unit = [(model.conflict_rate, model.mean_cosine), *((row.conflict_rate, row.mean_cosine) for row in rows)]
        whole = [
            (model.whole.conflict_rate, model.whole.mean_cosine),
            *((row.whole_conflict_rate, row.whole_mean_cosine) for row in rows),
        ]
        for offset, (what, pairs) in enumerate(((name, unit), (f"whole gradient, {name}", whole))):
            if report.original is None and offset:
                what = "whole gradient"
            details = [[exactly(rate), numbers.magnitude(cosine)] for rate, cosine in pairs]
            hover = f"batches of %{{x}}, {what}<br>%{{customdata[0]}} in conflict<br>mean cosine %{{customdata[1]}}"
            figure.add_trace(line(what, 2 * index + offset, sizes, [rate for rate, _ in pairs], (), details, hover))
    ticks = [1, *(row.batch_size for row in report.batch_curve)]
    figure.update_xaxes(title="samples in a batch", type="log", tickvals=ticks, ticktext=[str(tick) for tick in ticks], showgrid=False)
    figure.update_yaxes(title="pairs in conflict, %", nticks=6, rangemode="tozero")
    legend(figure)
    return figure


def deciles(report: "ConflictReport") -> "Figure":
    """The conflict rate of each decile of the neurons by activity, least active first."""
    from plotly.graph_objects import Figure

    figure = Figure(layout=layout(320))
    for index, (name, found) in enumerate(sides(report)):
        rows = found.deciles
        details = [
            [exactly(row.conflict_rate), hover_interval(row.interval), f"{row.neurons:,}", numbers.magnitude(row.mean_activation)]
            for row in rows
        ]
        hover = (
            f"decile %{{x}}, {name}<br>%{{customdata[0]}} in conflict<br>95%: %{{customdata[1]}}<br>%{{customdata[2]}} neurons, "
            "mean |activation| %{customdata[3]}"
        )
        shares = [row.conflict_rate for row in rows]
        figure.add_trace(line(name, index, [row.decile for row in rows], shares, [row.interval for row in rows], details, hover))
    figure.update_xaxes(title="decile of the neurons by activation", dtick=1, range=[0.6, 10.4], showgrid=False)
    figure.update_yaxes(title="pairs in conflict, %", nticks=6)
    legend(figure)
    return figure
