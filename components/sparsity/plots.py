"""Draws the figures of update sparsity: where the changes are, how large they are, and this pair among published fine-tunes."""

from __future__ import annotations

import math

import plotly.graph_objects as go

from analyzers.core.tensor_words import layer_name
from analyzers.update_sparsity.magnitudes import Bin, UlpBin
from analyzers.update_sparsity.published import published
from analyzers.update_sparsity.report import LayerRow, SparsityReport
from components.plots.marks import COLOUR_BAR, SHARES, error_bars, line, only_value, percent, say_only
from components.plots.style import COLOURS, GREY, LIMIT, MARKERS, exactly, layout, legend, log_axis, text, threshold
from components.text import numbers, shown

_SHORT = 34  # characters of a name in a figure
_OUTSIDE = "no layer"
_ROW = 38
# Most columns whose numbers fit on a wide screen.
_LABELLED = 16
# Minimum range of the colour scale, so that tiny differences are not stretched over all colours.
_NARROWEST = 0.02


def short(name: str) -> str:
    """Return a reference without its organisation."""
    return shown(name.split("/", 1)[-1].removeprefix("sample:"), _SHORT)


def heat_map(report: SparsityReport) -> go.Figure:
    """Draw the sparsity of tensors in a cell per layer and role. Tensors outside the layers have their own column on the left."""
    names = [*report.roles][::-1]
    columns, edges = _columns(report)
    places = [_place(row) for row in columns]
    shares = [[None if column is None else column.roles.get(role) for column in columns] for role in names]
    known = [share for row in shares for share in row if share is not None]
    only = only_value(known)
    # A single value is coloured on the full scale of shares.
    low, high = _range(known) if only is None else (0.0, 1.0)
    cells = go.Heatmap(
        x=edges,
        y=[text(role) for role in names],
        z=[[percent(share) for share in row] for row in shares],
        zmin=100 * low,
        zmax=100 * high,
        colorscale=[(1 - share, colour) for share, colour in reversed(SHARES)],  # strong is what changed
        xgap=1 if len(columns) <= _LABELLED else 0,
        ygap=1,
        hoverongaps=False,
        text=[[_cell(share) for share in row] for row in shares],
        texttemplate="%{text}" if len(columns) <= _LABELLED else None,
        customdata=[[[place, exactly(share)] for place, share in zip(places, row, strict=True)] for row in shares],
        hovertemplate="%{y}, %{customdata[0]}<br>sparsity %{customdata[1]}<extra></extra>",
        colorbar=COLOUR_BAR | {"nticks": 6},
    )
    figure = go.Figure([cells], layout(110 + _ROW * max(2, len(names))))
    middles = [((left + right) / 2, row) for left, right, row in zip(edges, edges[1:], columns, strict=False) if row is not None]
    inside = [(middle, str(row.layer)) for middle, row in middles if row.layer is not None]
    ticks = [(middle, _OUTSIDE) for middle, row in middles if row.layer is None] + inside[:: max(1, math.ceil(len(inside) / 6))]
    figure.update_xaxes(title="layer", tickvals=[at for at, _ in ticks], ticktext=[name for _, name in ticks], tickangle=0)
    figure.update_yaxes(showgrid=False, automargin=True, ticks="")
    figure.update_layout(margin={"l": 20, "r": 12, "t": 8, "b": 44})
    if only is not None:
        say_only(figure, f"Every cell: {exactly(only)}")
    return figure


def roles(report: SparsityReport) -> go.Figure:
    """Draw a point per role, and a line from its least to its most sparse tensor, or for a sample its interval. The axis covers only the
    values that occur, since changes are often below 1%.
    """
    known = [(text(role), row, 100 * row.sparsity) for role, row in report.roles.items() if row.sparsity is not None][::-1]
    intervals = {text(role): report.intervals.get(f"roles.{role}.sparsity") for role in report.roles}
    ends = [(found.low, found.high) if (found := intervals[name]) else (row.min, row.max) for name, row, _ in known]
    lows, highs = [percent(low) for low, _ in ends], [percent(high) for _, high in ends]
    shares = [share for _, _, share in known]
    details = [
        [exactly(row.sparsity), exactly(low), exactly(high), numbers.plural(row.tensors, "tensor"), f"{row.parameters:,}"]
        for (_, row, _), (low, high) in zip(known, ends, strict=True)
    ]
    what = "95% interval" if report.interval is not None else "tensors"
    hover = (
        f"sparsity %{{customdata[0]}}<br>{what} from %{{customdata[1]}} to %{{customdata[2]}}<br>%{{customdata[3]}}, "
        "%{customdata[4]} parameters"
    )
    names, bars = [name for name, _, _ in known], error_bars(shares, lows, highs, GREY) | {"thickness": 1.6, "width": 5}
    style = {"mode": "markers", "error_x": bars, "cliponaxis": False, "hovertemplate": "%{y}<br>" + hover + "<extra></extra>"}
    points = line("", shares, names, 0, hover, details, **style)
    figure = go.Figure([points], layout(80 + _ROW * max(2, len(known))))
    drawn = [end for end in (*shares, *lows, *highs) if end is not None] or [0.0, 100.0]
    low, high = min(drawn), max(drawn)
    margin = max(0.5, 0.06 * (high - low))
    low, high = max(0.0, low - margin), min(100.0, high + margin)
    figure.update_xaxes(title="sparsity, %", range=[low, high], nticks=6, showgrid=True, gridcolor=GREY)
    figure.update_yaxes(automargin=True, ticks="")
    figure.update_layout(margin={"l": 20, "r": 12, "t": 8, "b": 48})
    return figure


def _columns(report: SparsityReport) -> tuple[list[LayerRow | None], list[float]]:
    """Return the columns (tensors outside the layers, a gap, and the layers) and their edges, one more than columns."""
    inside = [row for row in report.layers if row.layer is not None]
    outside = [row for row in report.layers if row.layer is None]
    # the column outside the layers is wide enough for its label, for any number of layers
    width, gap = max(1.0, len(inside) / 5), max(0.15, len(inside) / 24)
    columns: list[LayerRow | None] = [*outside, *([None] if outside and inside else []), *inside]
    edges = [-gap - width - 0.5, -gap - 0.5] if outside else []
    return columns, edges + [place - 0.5 for place in range(len(inside) + 1)] if inside else edges


def _place(row: LayerRow | None) -> str:
    return "" if row is None else layer_name(row.layer)


def _range(shares: list[float]) -> tuple[float, float]:
    """Return the ends of the colour scale: the range of the shares, at least `_NARROWEST` wide and within [0, 1]."""
    low, high = min(shares, default=0.0), max(shares, default=1.0)
    if high - low < _NARROWEST:
        high = min(1.0, (low + high + _NARROWEST) / 2)
        low = max(0.0, high - _NARROWEST)
    return low, high


def _cell(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.3g}"


_HERE = "this pair"


def among_published(report: SparsityReport) -> go.Figure:
    """Draw a point per published fine-tune, a line per algorithm, and this pair across all of them."""
    rows = published()
    algorithms = sorted({row.algorithm for row in rows}, key=lambda name: (name != "SFT", name))
    figure = go.Figure(layout=layout(300))
    hover = "%{customdata[0]}<br>from %{customdata[1]}<br>%{customdata[3]}sparsity %{customdata[2]}"
    for style, algorithm in enumerate(algorithms):
        found = [row for row in rows if row.algorithm == algorithm]
        details = [[text(row.finetuned), text(row.base_model), f"{100 * row.sparsity:.1f}%", f"{text(row.data)}<br>"] for row in found]
        marker = {"symbol": MARKERS[style], "size": 10, "color": COLOURS[style], "opacity": 0.85}
        x, y = [100 * row.sparsity for row in found], [text(algorithm)] * len(found)
        figure.add_trace(line(algorithm, x, y, style, hover, details, mode="markers", marker=marker))
    if report.sparsity is not None:
        here, interval = 100 * report.sparsity, report.interval
        low, high = (None, None) if interval is None else (100 * interval.low, 100 * interval.high)
        marker = {"symbol": "star", "size": 16, "color": COLOURS[3], "line": {"width": 1.2, "color": GREY}}
        details = [[text(short(report.request.tuned[-1])), text(short(report.request.base)), f"{here:.6g}%", ""]]
        bars = error_bars([here], [low], [high], COLOURS[3])
        figure.add_trace(line(_HERE, [here], [_HERE], 3, hover, details, mode="markers", marker=marker, error_x=bars))
        figure.add_shape(type="line", yref="paper", x0=here, x1=here, y0=0, y1=1, line=LIMIT, layer="below")
    figure.update_xaxes(title="sparsity in bf16, %", range=[-5, 102], nticks=6)
    figure.update_yaxes(type="category", categoryorder="array", categoryarray=[_HERE, *algorithms[::-1]], automargin=True, ticks="")
    figure.update_layout(margin={"l": 20, "r": 16, "t": 8, "b": 48})
    return figure


# Names and log2 of the smallest and the largest relative spacing of bf16 values.
THRESHOLDS = ((-8, "smallest relative bf16 ULP"), (-7, "largest relative bf16 ULP"))
# Pixels of a bar.
_BAR = 22
# Range of the relative updates drawn, in binades: no update exceeds twice the value's size.
_LEAST, _MOST = -40.0, 1.0


def ulps(report: SparsityReport) -> go.Figure:
    """Draw a histogram of the distance between pairs in bf16 ULPs, a row for each, on a logarithmic axis; most are 0."""
    bins = [each for each in report.ulp_histogram if each.count]
    shares = [100 * each.share for each in bins]
    bars = go.Bar(
        x=shares,
        y=list(range(len(bins))),
        orientation="h",
        marker={"color": COLOURS[0]},
        customdata=[[_steps(each), f"{each.count:,}", exactly(share / 100)] for each, share in zip(bins, shares, strict=True)],
        hovertemplate="%{customdata[0]} apart<br>%{customdata[1]} values read, %{customdata[2]}<extra></extra>",
    )
    figure = go.Figure([bars], layout(80 + _BAR * len(bins)))
    names = [
        "sign flips" if each.flipped else f"{each.low:,}" if each.low == each.high else f"{each.low:,} to {each.high:,}" for each in bins
    ]
    low = math.floor(math.log10(min(shares, default=1e-2)) - 0.2)
    figure.update_xaxes(title="% of the values", showgrid=True, gridcolor=GREY, **log_axis(low, 2.0))
    figure.update_yaxes(tickvals=list(range(len(bins))), ticktext=names, range=[len(bins) - 0.4, -0.6], showgrid=False, automargin=True)
    figure.update_layout(margin_r=20)  # space for half of the last label
    return figure


def relative(report: SparsityReport) -> go.Figure:
    """Draw a stacked histogram of relative updates: values that changed in bf16 and values that did not."""
    bins = [each for each in report.magnitudes.relative.histogram if each.count and each.low > 0]
    every, changed = [each.share for each in bins], [each.changed_share for each in bins]
    traces = [_bars(bins, [each.changed for each in bins], changed, "changed in bf16", COLOURS[0])]
    unchanged = [each.count - each.changed for each in bins]
    if any(unchanged):
        others = [share - part for share, part in zip(every, changed, strict=True)]
        traces.append(_bars(bins, unchanged, others, "the same in bf16", COLOURS[1]))
    figure = go.Figure(traces, layout(360))
    top = max((100 * share / _width(each) for each, share in zip(bins, every, strict=True)), default=1.0)
    low = max(_LEAST, min((math.log2(each.low) for each in bins), default=-12.0)) - 0.5
    low = min(low, THRESHOLDS[0][0] - 2)
    right = THRESHOLDS[0][0] - low < 0.5 * (_MOST - low)
    for number, (exponent, name) in enumerate(THRESHOLDS if right else THRESHOLDS[::-1]):
        threshold(figure, exponent, 1 - 0.09 * number, f"{name}, {numbers.power(exponent)}", right)
    step = 2 if _MOST - low <= 14 else 4 if _MOST - low <= 28 else 8
    ticks = list(range(math.ceil(low / step) * step, 1, step))
    figure.update_layout(barmode="stack", bargap=0)
    powers = [numbers.power(tick) for tick in ticks]
    figure.update_xaxes(title="|update| / size of the value", range=[low, _MOST], tickvals=ticks, ticktext=powers)
    figure.update_yaxes(title="% of the values, per doubling", range=[0, top * 1.35], nticks=5)
    legend(figure)
    return figure


def _bars(bins: list[Bin], counts: list[int], shares: list[float], name: str, colour: str) -> go.Bar:
    ends = [(math.log2(each.low), math.log2(each.high)) for each in bins]
    return go.Bar(
        x=[(low + high) / 2 for low, high in ends],
        y=[100 * share / _width(each) for each, share in zip(bins, shares, strict=True)],
        width=[0.92 * (high - low) for low, high in ends],
        name=name,
        marker={"color": colour},
        customdata=[[f"{100 * each.low:.3g}", f"{100 * each.high:.3g}", f"{count:,}"] for each, count in zip(bins, counts, strict=True)],
        hovertemplate="from %{customdata[0]}% to %{customdata[1]}% of its size<br>%{customdata[2]} values read, "
        + f"{name}<extra></extra>",
    )


def _width(each: Bin) -> float:
    """Return the width of a bin in binades. go.Bar heights are densities: bins of equal linear width differ in binades."""
    return math.log2(each.high / each.low)


def _steps(each: UlpBin) -> str:
    apart = numbers.plural(each.low, "ULP") if each.low == each.high else f"{each.low:,} to {each.high:,} ULPs"
    return f"{apart} (the sign flipped)" if each.flipped else apart
