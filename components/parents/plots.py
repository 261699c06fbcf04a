"""Draws the figures of parents: the ancestry, and the weights per layer."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from analyzers.parents.facts import related
from components.parents.ancestors import Ancestor, ancestors
from components.plots.marks import error_bars, line, marked, shortened
from components.plots.style import COLOURS, layout, legend, text
from components.text import numbers

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from analyzers.parents.report import ParentsReport

# Most candidates in the figure; most characters of a name on a narrow screen.
_SHOWN, _NAME = 6, 22
_ROW = 62


def ancestry(report: "ParentsReport") -> "Figure":
    """Draw parents and the next most similar candidates on the left, the model on the right, and a line for each parent."""
    from plotly.graph_objects import Figure

    rows = ancestors(report)
    others = [row for row in report.candidates if row.ref not in {row.ref for row, _, _ in rows}]
    drawn = [*((each, True) for each in rows), *((Ancestor(row, None, False), False) for row in others[: max(0, _SHOWN - len(rows))])]
    figure = Figure(layout=layout(70 + _ROW * len(drawn)))
    middle = (len(drawn) - 1) / 2
    for y, ((row, weight, proven), is_named) in enumerate(drawn):
        color = COLOURS[y % len(COLOURS)]
        said = f"{numbers.share(row.equal_share)} equal, cosine {numbers.magnitude(row.cosine_without)}"
        if is_named:
            width = 1.5 + 5 * min(1.0, abs(1 if weight is None else weight))
            stroke = {"color": color, "width": width, "dash": "solid" if proven else "dash"}
            figure.add_scatter(x=[0.06, 0.94], y=[y, middle], mode="lines", line=stroke, hoverinfo="skip")
            amount = "" if weight is None else f"{numbers.share(weight)} of the layers, " if report.verdict == "stack" else f"{weight:.3f} "
            how = ("proven" if proven else "inferred") if len(report.parents) == 1 or weight is not None else "not told apart"
            # beside the line, on the side that it leads away from
            place = {"x": 0.5, "xanchor": "left", "y": (y + middle) / 2, "yshift": 12 if y <= middle else -12}
            figure.add_annotation(text=f"{amount}{how}", showarrow=False, **place)
        marker = {"size": 13, "color": color, "symbol": "circle" if is_named else "circle-open"}
        hover = f"{text(row.ref)}<br>{said}<extra></extra>"
        figure.add_scatter(x=[0.04], y=[y], mode="markers", marker=marker, hovertemplate=hover)
        name = f"{text(shortened(row.ref, _NAME))}<br>{said if is_named or related(row) else 'not related'}"
        side, shift = ("bottom", 7) if y <= middle else ("top", -7)  # away from the line, which leads towards the middle
        figure.add_annotation(x=0, y=y, text=name, showarrow=False, xanchor="left", yanchor=side, yshift=shift, align="left", font_size=11)
    figure.add_scatter(x=[0.96], y=[middle], mode="markers", marker={"size": 17, "color": COLOURS[0], "symbol": "square"}, hoverinfo="skip")
    name = text(shortened(report.checkpoint.ref, _NAME))
    figure.add_annotation(x=1, y=middle, text=name, showarrow=False, xanchor="right", yanchor="top", yshift=-12, font_size=11)
    figure.update_xaxes(visible=False, range=[-0.02, 1.02])
    figure.update_yaxes(visible=False, range=[len(drawn) - 0.3, -0.7])
    figure.update_layout(margin={"l": 8, "r": 8, "t": 20, "b": 20})
    return figure


def layer_map(report: "ParentsReport") -> "Figure":
    """Draw for each layer the candidate's layer whose weights it has, in the candidate's colour; tensors outside the layers at -1."""
    from plotly.graph_objects import Figure

    figure = Figure(layout=layout(340))
    for number, ref in enumerate(dict.fromkeys(each.ref for each in report.layer_map)):
        rows = [each for each in report.layer_map if each.ref == ref]
        x, y = (
            [-1 if place is None else place for place in places] for places in zip(*((row.layer, row.source) for row in rows), strict=True)
        )
        equal = [[numbers.share(row.equal_share)] for row in rows]
        hover = "layer %{x}<br>is layer %{y}<br>%{customdata[0]} equal"
        figure.add_trace(line(ref, x, y, number, hover, equal, mode="markers"))
    figure.update_xaxes(title="layer", **_ticks(8, (each.layer for each in report.layer_map)))
    figure.update_yaxes(title="layer of the parent", **_ticks(6, (each.source for each in report.layer_map)))
    legend(figure, toggle=True)
    return figure


def layers(report: "ParentsReport") -> "Figure":
    """Draw the weight of each parent in each layer with its interval; tensors outside the layers at -1."""
    from plotly.graph_objects import Figure

    figure = Figure(layout=layout(340))
    fit = report.fit
    for number, parent in enumerate(fit.parents if fit else ()):
        rows = [
            (-1 if row.layer is None else row.layer, row.weights[number], row.low[number], row.high[number])
            for row in (fit.layers if fit else ())
        ]
        x, y, low, high = (list(column) for column in zip(*rows, strict=True))
        bars = error_bars(y, [max(each, -2) for each in low], [min(each, 3) for each in high], marked(number)["color"])
        figure.add_trace(line(parent.ref, x, y, number, "layer %{x}<br>weight %{y:.4f}", error_y=bars))
    figure.update_xaxes(title="layer", **_ticks(8, (row.layer for row in (fit.layers if fit else ()))))
    figure.update_yaxes(title="weight", nticks=6)
    legend(figure, toggle=True)
    return figure


def _ticks(most: int, layers: Iterable[int | None]) -> dict[str, list[Any]]:
    """Return about ``most`` of the layers as ticks; tensors outside the layers are at -1."""
    known = sorted({-1 if layer is None else layer for layer in layers})
    ticks = known[:: max(1, len(known) // most)]
    return {"tickvals": ticks, "ticktext": ["outside" if layer < 0 else f"{layer}" for layer in ticks]}
