"""Sizes of the updates: in bf16 ULPs, and relative to the values."""

from __future__ import annotations

import math

import plotly.graph_objects as go

from analyzers.update_sparsity.report import Bin, SparsityReport, UlpBin
from components.plots.style import COLOURS, exactly, layout, legend, log_axis, threshold
from components.text import numbers

# log2 of the smallest and the largest relative spacing of bf16 values, with their names.
THRESHOLDS = ((-8, "smallest relative bf16 ULP"), (-7, "largest relative bf16 ULP"))
# Bar labels that fit on a narrow screen.
_NAMED = 6
# Values of one sign that are this many ULPs apart differ by a factor of 2^128: in weights, only sign flips are.
_FLIPPED = 1 << 14
# Range of the relative updates drawn, in binades: no update exceeds twice the value's size.
_LEAST, _MOST = -40.0, 1.0


def ulps(report: SparsityReport) -> go.Figure:
    """Histogram of the distance between pairs in bf16 ULPs, on a logarithmic axis; most are 0."""
    total = sum(each.count for each in report.ulp_histogram) or 1
    found = [each for each in report.ulp_histogram if each.count]
    shares = [100 * each.count / total for each in found]
    bars = go.Bar(
        x=list(range(len(found))),
        y=shares,
        marker={"color": COLOURS[0]},
        customdata=[[_steps(each), f"{each.count:,}", exactly(each.count / total)] for each in found],
        hovertemplate="%{customdata[0]} apart<br>%{customdata[1]} values, %{customdata[2]}<extra></extra>",
    )
    figure = go.Figure([bars], layout(340))
    figure.update_layout(margin_r=32)  # for half of the last label
    every = math.ceil(len(found) / _NAMED) or 1
    last = len(found) - 1
    named = [place for place in range(0, last, every) if last - place >= every] + [last] * (last >= 0)
    ticks = [f"{found[i].low:,}" + ("" if found[i].low == found[i].high else "+") for i in named]
    if found and found[-1].low >= _FLIPPED:
        ticks[-1] = "sign flips"
    figure.update_xaxes(title="bf16 ULPs between base and tuned", tickangle=0, tickvals=named, ticktext=ticks)
    figure.update_yaxes(title="% of the values", **log_axis(math.floor(math.log10(min(shares, default=1e-2)) - 0.2), 2.3))
    return figure


def relative(report: SparsityReport) -> go.Figure:
    """Histogram of relative updates, stacked: values that changed in bf16 and values that did not."""
    found = [each for each in report.magnitudes.relative.histogram if each.count and each.low > 0]
    total = report.magnitudes.relative.count or 1
    traces = [_bars(found, [each.changed for each in found], total, "changed in bf16", COLOURS[0])]
    unchanged = [each.count - each.changed for each in found]
    if any(unchanged):
        traces.append(_bars(found, unchanged, total, "the same in bf16", COLOURS[1]))
    figure = go.Figure(traces, layout(360))
    top = max((100 * each.count / total / _width(each) for each in found), default=1.0)
    low = max(_LEAST, min((math.log2(each.low) for each in found), default=-12.0)) - 0.5
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


def _bars(bins: list[Bin], counts: list[int], total: int, name: str, colour: str) -> go.Bar:
    ends = [(math.log2(each.low), math.log2(each.high)) for each in bins]
    return go.Bar(
        x=[(low + high) / 2 for low, high in ends],
        y=[100 * count / total / _width(each) for each, count in zip(bins, counts, strict=True)],
        width=[0.92 * (high - low) for low, high in ends],
        name=name,
        marker={"color": colour},
        customdata=[[f"{100 * each.low:.3g}", f"{100 * each.high:.3g}", f"{count:,}"] for each, count in zip(bins, counts, strict=True)],
        hovertemplate=f"from %{{customdata[0]}}% to %{{customdata[1]}}% of its size<br>%{{customdata[2]}} values, {name}<extra></extra>",
    )


def _width(each: Bin) -> float:
    """The width in binades. go.Bar heights are densities: bins of equal linear width have different widths in binades."""
    return math.log2(each.high / each.low)


def _steps(each: UlpBin) -> str:
    apart = numbers.plural(each.low, "ULP") if each.low == each.high else f"{each.low:,} to {each.high:,} ULPs"
    return f"{apart} (the sign flipped)" if each.low >= _FLIPPED else apart
