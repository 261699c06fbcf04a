"""Mean cosine against rank, k and anchors, with the ceilings and the null."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log10
from statistics import fmean
from typing import TYPE_CHECKING, Any

from analyzers.exit_feedback.signals import NULL, RANDOM
from components.exit.text import cosine, settings, style
from components.plots.exit_feedback.lines import line
from components.plots.marks import marked
from components.plots.style import layout, text

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from analyzers.exit_feedback.report import ExitReport

PARAMETERS = {"rank": "rank r", "k": "k", "anchors": "anchors m"}
# Pixels of a panel, and of the gap between two, which holds an axis title.
_PANEL, _BETWEEN = 230, 78
# Margin beyond the smallest and the largest value, as a factor; the smallest ratio of neighboring ticks.
_ROOM, _NEAR = 1.25, 1.6
_BAND = "rgba(124,130,141,0.28)"


@dataclass(slots=True)
class _Panel:
    """One parameter: method -> value -> mean cosine of each seed."""

    parameter: str
    found: dict[str, dict[int, list[float]]] = field(default_factory=dict)

    @property
    def values(self) -> list[int]:
        """Every value that was tried."""
        return sorted({value for rows in self.found.values() for value in rows})

    @property
    def edges(self) -> tuple[float, float]:
        """Of the axis."""
        return self.values[0] / _ROOM, self.values[-1] * _ROOM

    @property
    def ticks(self) -> list[int]:
        """Values that fit as labels, always with the largest."""
        kept: list[int] = []
        for value in reversed(self.values):
            if not kept or kept[-1] / value >= _NEAR:
                kept.append(value)
        return kept[::-1]


def sweep(report: "ExitReport") -> "Figure":
    """A panel for each parameter: mean cosine of every signal that has it, with bars over seeds; lines without markers for signals that
    neither have it nor draw codes; a band for the null.
    """
    from plotly.subplots import make_subplots

    panels = _panels(report)
    count = max(1, len(panels))
    base: dict[str, Any] = layout(66 + count * _PANEL + (count - 1) * _BETWEEN)
    within = base["height"] - base["margin"]["t"] - base["margin"]["b"]
    figure = make_subplots(rows=count, cols=1, vertical_spacing=_BETWEEN / within if count > 1 else None)
    figure.update_layout(base)
    figure.update_xaxes(**base["xaxis"])
    figure.update_yaxes(**base["yaxis"], title="mean cosine", nticks=6, range=_range(report, panels))
    for row, panel in enumerate(panels, 1):
        for trace in (*_null(report, panel), *_level(report, panel), *_swept(panel)):
            figure.add_trace(trace, row, 1)
        figure.update_xaxes(
            title=PARAMETERS[panel.parameter],
            type="log",
            range=[log10(edge) for edge in panel.edges],
            tickvals=panel.ticks,
            ticktext=[f"{tick:,}" for tick in panel.ticks],
            tickangle=0,
            showgrid=False,
            row=row,
            col=1,
        )
    return figure


def _panels(report: "ExitReport") -> list[_Panel]:
    panels = {parameter: _Panel(parameter) for parameter in PARAMETERS}
    for row in report.sweep:
        if row.parameter in panels and row.cosine is not None:
            panels[row.parameter].found.setdefault(row.method, {}).setdefault(row.value, []).append(row.cosine.mean)
    return [panel for panel in panels.values() if panel.found]


def _swept(panel: _Panel) -> list[Any]:
    drawn = []
    for name, rows in panel.found.items():
        if name == NULL:
            continue
        values = sorted(rows)
        means = [fmean(rows[value]) for value in values]
        said = [[cosine(mean), _seeds(rows[value])] for mean, value in zip(means, values, strict=True)]
        hover = f"{text(panel.parameter)}%{{x:,}}<br>mean cosine %{{customdata[0]}}%{{customdata[1]}}"
        drawn.append(line(name, values, means, hover, said, **_ranges(name, [rows[value] for value in values])))
    return drawn


def _level(report: "ExitReport", panel: _Panel) -> list[Any]:
    """Signals without the parameter and without codes, as constant lines."""
    drawn = []
    for name, method in report.methods.items():
        if name in panel.found or name in RANDOM or method.cosine is None:
            continue
        x = [panel.edges[0], *panel.values, panel.edges[1]]
        hover = f"{text(settings(report, name))}<br>mean cosine {cosine(method.cosine.mean)}"
        thin = {"color": marked(style(name))["color"], "dash": marked(style(name))["dash"], "width": 1.3}
        drawn.append(line(name, x, [method.cosine.mean] * len(x), hover, mode="lines", line=thin))
    return drawn


def _null(report: "ExitReport", panel: _Panel) -> list[Any]:
    """The range over seeds and a line for the mean: at each value, or constant where the null does not have the parameter."""
    from plotly.graph_objects import Scatter

    rows = panel.found.get(NULL)
    if rows is None and report.null is not None:
        drawn = list(report.null.values)
        rows = dict.fromkeys(panel.values, drawn)
    if not rows:
        return []
    values = sorted(rows)
    lows, highs, means = ([take(rows[value]) for value in values] for take in (min, max, fmean))
    x = [panel.edges[0], *values, panel.edges[1]]
    low, high, mean = ([each[0], *each, each[-1]] for each in (lows, highs, means))
    band = Scatter(
        x=[*x, *reversed(x)],
        y=[*high, *reversed(low)],
        mode="lines",
        line={"width": 0},
        fill="toself",
        fillcolor=_BAND,
        hoverinfo="skip",
        name=NULL,
    )
    said = [[cosine(mean), cosine(low), cosine(high)] for mean, low, high in zip(mean, low, high, strict=True)]
    hover = "codes drawn anew for every batch<br>mean cosine %{customdata[0]}<br>from %{customdata[1]} to %{customdata[2]}"
    return [band, line(NULL, x, mean, hover, said, mode="lines")]


def _ranges(name: str, seeds: Sequence[Sequence[float]]) -> Mapping[str, Any]:
    """Bars from the smallest to the largest, where there are several seeds."""
    if all(len(each) < 2 for each in seeds):
        return {}
    above = [max(each) - fmean(each) for each in seeds]
    below = [fmean(each) - min(each) for each in seeds]
    bars = {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "thickness": 1.2, "width": 3}
    return {"error_y": bars | {"color": marked(style(name))["color"]}}


def _seeds(values: Sequence[float]) -> str:
    return f"<br>{len(values)} seeds: {cosine(min(values))} to {cosine(max(values))}" if len(values) > 1 else ""


def _range(report: "ExitReport", panels: Sequence[_Panel]) -> list[float]:
    known = [mean for panel in panels for rows in panel.found.values() for each in rows.values() for mean in each]
    known += [method.cosine.mean for method in report.methods.values() if method.cosine is not None]
    return [min(-0.05, *known) - 0.03, max(known, default=1.0) + 0.04]
