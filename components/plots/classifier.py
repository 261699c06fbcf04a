"""The reliability of the classifier: predicted probabilities for held-out families against observed frequencies."""

from __future__ import annotations

import plotly.graph_objects as go

from analyzers.dtype_detection.evaluation import Evaluation
from components.plots import style
from components.text import numbers


def reliability(evaluation: Evaluation) -> go.Figure:
    """Mean predicted probability against observed frequency, a point per bin; a calibrated classifier is on the diagonal.

    A point's area is proportional to the number of predictions in its bin, which is written next to it.
    """
    bins = evaluation.reliability
    most = max((each.predictions for each in bins), default=1)
    dashed = {"color": style.GREY, "dash": "dash", "width": 1.2}
    diagonal = go.Scatter(x=[0, 100], y=[0, 100], mode="lines", line=dashed, hoverinfo="skip", name="as promised")
    points = go.Scatter(
        x=[100 * each.mean for each in bins],
        y=[100 * each.share for each in bins],
        mode="markers+text",
        name="out of fold",
        marker={
            "color": style.COLOURS[0],
            "size": [each.predictions for each in bins],
            "sizemode": "area",
            "sizeref": 2 * most / 26**2,
            "sizemin": 5,
        },
        text=[f"{each.predictions}" for each in bins],
        textposition=["top center" if each.share < 0.9 else "bottom center" for each in bins],
        cliponaxis=False,
        customdata=[
            [numbers.share(each.low), numbers.share(each.high), numbers.plural(each.predictions, "prediction"), numbers.share(each.share)]
            for each in bins
        ],
        hovertemplate="%{customdata[2]} from %{customdata[0]} to %{customdata[1]}<br>mean %{x:.3g}%<br>came true: %{customdata[3]}"
        "<extra></extra>",
    )
    figure = go.Figure([diagonal, points], style.layout(380))
    ticks = [0, 20, 40, 60, 80, 100]
    figure.update_xaxes(title="predicted probability, %", range=[-4, 104], tickvals=ticks)
    figure.update_yaxes(title="came true, %", range=[-4, 112], tickvals=ticks)
    return figure
