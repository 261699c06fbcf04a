"""Draws the figures of parents: the ancestry, the weights by layer, and where layers come from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import plotly.graph_objects as go

from analyzers.comparison.parents.report import Candidate, ParentsReport
from components.plots.marks import cells_by_layer, error_bars, line, marked, percent, shortened
from components.plots.style import COLOURS, label, layout, legend, text
from components.text import numbers

# Most candidates in the figure; most characters of a name on a narrow screen.
_SHOWN, _NAME = 6, 22
_ROW = 62


class Ancestor(NamedTuple):
    """A candidate that the verdict names. weight: in a merge; in a stack, the candidate's share of the layers; else None. proven: by far
    more equal bits than by chance, rather than inferred.
    """

    row: Candidate
    weight: float | None
    proven: bool


def ancestors(report: ParentsReport) -> list[Ancestor]:
    """List the candidates that the verdict names; none for unrelated models."""
    if report.verdict in ("unrelated", "undecided"):
        return []
    by_ref = {row.ref: row for row in report.candidates}
    named = [ref for ref in report.parents if ref in by_ref]
    proof = report.proof is not None
    if report.verdict == "merge" and (fit := report.fit) is not None:
        exact = report.proof == "exact"
        return [Ancestor(by_ref[parent.ref], parent.weight, exact) for parent in fit.parents if parent.ref in named]
    if report.verdict == "stack":
        sources = [row.ref for row in report.layer_map if row.layer is not None]
        return [Ancestor(by_ref[ref], sources.count(ref) / max(1, len(sources)), proof) for ref in named]
    equal = report.verdict == "same-weights" and proof
    return [Ancestor(by_ref[ref], None, equal or by_ref[ref].proven) for ref in named]


def ancestry(report: ParentsReport) -> go.Figure | None:
    """Draw parents and the next most similar candidates on the left, the model on the right, and a line for each parent."""
    parents = ancestors(report)
    others = [row for row in report.candidates if row.ref not in {parent.row.ref for parent in parents}]
    drawn = [*parents, *(Ancestor(row, None, False) for row in others[: max(0, _SHOWN - len(parents))])]
    if not drawn:
        return None
    figure = go.Figure(layout=layout(70 + _ROW * len(drawn)))
    middle = (len(drawn) - 1) / 2
    for y, (row, weight, is_proven) in enumerate(drawn):
        color, named = COLOURS[y % len(COLOURS)], y < len(parents)
        similarity = f"{numbers.share(row.equal_share)} equal, cosine {numbers.magnitude(row.cosine)}"
        if named:
            width = 1.5 + 5 * min(1.0, abs(1 if weight is None else weight))
            stroke = {"color": color, "width": width, "dash": "solid" if is_proven else "dash"}
            figure.add_scatter(x=[0.06, 0.94], y=[y, middle], mode="lines", line=stroke, hoverinfo="skip")
            amount = "" if weight is None else f"{numbers.share(weight)} of the layers, " if report.verdict == "stack" else f"{weight:.3f} "
            how = ("proven" if is_proven else "inferred") if len(report.parents) == 1 or weight is not None else "not told apart"
            # beside the line, on the side that it leads away from, and left of the model's name; below a level line, above which is a name
            place: dict[str, Any] = {"x": 0.37, "xanchor": "left", "y": y + 0.36 * (middle - y), "yshift": 12 if y < middle else -12}
            if y == middle:
                place = {"x": 0.06, "xanchor": "left", "y": y, "yshift": -10}
            label(figure, f"{amount}{how}", **place)
        marker = {"size": 13, "color": color, "symbol": "circle" if named else "circle-open"}
        hover = f"{text(row.ref)}<br>{similarity}<extra></extra>"
        figure.add_scatter(x=[0.04], y=[y], mode="markers", marker=marker, hovertemplate=hover)
        name = f"{text(shortened(row.ref, _NAME))}<br>{similarity if named or row.related else 'not related'}"
        side, shift = ("bottom", 7) if y <= middle else ("top", -7)  # away from the line, which leads towards the middle
        label(figure, name, x=0, y=y, xanchor="left", yanchor=side, yshift=shift, align="left")
    figure.add_scatter(x=[0.96], y=[middle], mode="markers", marker={"size": 17, "color": COLOURS[0], "symbol": "square"}, hoverinfo="skip")
    label(figure, text(shortened(report.checkpoint.ref, _NAME)), x=1, y=middle, xanchor="right", yanchor="top", yshift=-18)
    figure.update_xaxes(visible=False, range=[-0.02, 1.02])
    figure.update_yaxes(visible=False, range=[len(drawn) - 0.3, -0.7])
    return figure.update_layout(margin={"l": 8, "r": 8, "t": 20, "b": 20})


def layers(report: ParentsReport) -> go.Figure | None:
    """Draw the weight of each parent in each layer with its interval; tensors outside the layers at -1."""
    if (fit := report.fit) is None or len(fit.layers) < 2:
        return None
    figure = go.Figure(layout=layout(340))
    rows = sorted(fit.layers, key=lambda row: _place(row.layer))
    for style, parent in enumerate(fit.parents):
        weights, lows, highs = ([getattr(row, field)[style] for row in rows] for field in ("weights", "low", "high"))
        bars = error_bars(weights, [max(low, -2.0) for low in lows], [min(high, 3.0) for high in highs], marked(style)["color"])
        hover = "layer %{x}<br>weight %{y:.4f}"
        figure.add_trace(line(parent.ref, [_place(row.layer) for row in rows], weights, style, hover, error_y=bars))
    figure.update_yaxes(title="weight", nticks=6)
    return legend(figure.update_xaxes(title="layer", **_ticks(row.layer for row in rows)))


def layer_map(report: ParentsReport) -> go.Figure | None:
    """Draw for each layer the candidate's layer whose weights it has, in the candidate's colour; tensors outside the layers at -1."""
    if not report.layer_map:
        return None
    figure = go.Figure(layout=layout(340))
    for style, ref in enumerate(dict.fromkeys(row.ref for row in report.layer_map)):
        rows = [row for row in report.layer_map if row.ref == ref]
        x, y = [_place(row.layer) for row in rows], [_place(row.source) for row in rows]
        hover = "layer %{x}<br>is layer %{y}<br>%{customdata[0]} equal"
        figure.add_trace(line(ref, x, y, style, hover, [[numbers.share(row.equal_share)] for row in rows], mode="markers"))
    figure.update_yaxes(title="layer of the parent", **_ticks(row.source for row in report.layer_map))
    return legend(figure.update_xaxes(title="layer", **_ticks(row.layer for row in report.layer_map)))


def errors(report: ParentsReport) -> go.Figure | None:
    """Draw the largest error of the quantized tensors in a cell per layer and role."""
    rows = report.quantized.tensors if report.quantized is not None else ()
    layers = sorted({row.layer for row in rows}, key=_place)
    largest: dict[tuple[str, int | None], float] = {}
    for row in rows:
        largest[row.role, row.layer] = max(largest.get((row.role, row.layer), 0.0), row.error or 0.0)
    shares = {role: [percent(largest.get((role, layer))) for layer in layers] for role in dict.fromkeys(row.role for row in rows)}
    return cells_by_layer(shares, layers, "error", strong="high")


def _place(layer: int | None) -> int:
    return -1 if layer is None else layer


def _ticks(layers: Iterable[int | None]) -> dict[str, list[Any]]:
    known = sorted(set(map(_place, layers)))
    ticks = known[:: max(1, len(known) // 8)]
    return {"tickvals": ticks, "ticktext": ["no layer" if layer < 0 else f"{layer}" for layer in ticks]}
