"""Draws a figure with Pillow, without a browser, for previews: bars, lines, markers and heat maps on linear and log axes."""

import math
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from components.plots.style import COLOURS

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw
    from plotly.graph_objects import Figure

_GRID, _TEXT, _LIMIT = "#e4e4e1", "#62656d", "#b42318"
_MARKER, _LINE = 5, 3
_PALETTE = 64
_ONLY_CELL = 48  # side in pixels of a cell that is alone in its row or column
_TICKS = 5


class Box(NamedTuple):
    """A rectangle in a picture, in pixels."""

    left: float
    top: float
    right: float
    bottom: float


class _Axis:
    """An axis, which maps values to pixels between ``start`` and ``end``."""

    def __init__(self, settings: Any, values: Sequence[Any], start: float, end: float, bars: bool = False) -> None:
        self._log = settings.type == "log"
        self._names = list(dict.fromkeys(values)) if any(isinstance(value, str) for value in values) else []
        known = [self._scaled(value) for value in values if value is not None]
        spread = settings.range or (min(known, default=0.0), max(known, default=1.0))
        self.low, self.high = (float(edge) for edge in spread)
        if not settings.range:
            around = 0.5 if self._names or bars else (self.high - self.low) * 0.08 or 1.0
            self.low, self.high = self.low - around, self.high + around
        domain = settings.domain or (0, 1)
        self._start, self._end = (start + part * (end - start) for part in domain)
        self._settings = settings

    def at(self, value: Any) -> float:
        """Return the position of a value."""
        return self._start + (self._scaled(value) - self.low) / (self.high - self.low) * (self._end - self._start)

    def ticks(self) -> Iterator[tuple[float, str]]:
        """Yield the position and the label of each tick."""
        if self._names:
            yield from ((self.at(name), name) for name in self._names)
        elif self._settings.tickvals is not None:
            texts = self._settings.ticktext if self._settings.ticktext is not None else map(str, self._settings.tickvals)
            yield from ((self.at(value), text) for value, text in zip(self._settings.tickvals, texts, strict=True))
        else:
            step = 10 ** math.floor(math.log10(abs(self.high - self.low) / _TICKS)) if not self._log else 1
            step *= next((factor for factor in (1, 2, 5, 10) if abs(self.high - self.low) / (step * factor) <= _TICKS), 10)
            low, high = sorted((self.low, self.high))
            for number in range(math.ceil(low / step), math.floor(high / step) + 1):
                value = number * step
                yield self.at(10**value if self._log else value), f"{10**value:g}" if self._log else f"{value:g}"

    def _scaled(self, value: Any) -> float:
        if self._names:
            return self._names.index(value) if value in self._names else 0.0
        return math.log10(value) if self._log and value > 0 else float(value)


def draw(canvas: "ImageDraw", figure: "Figure", box: Box, font: Any) -> None:
    """Draw the axes of ``figure`` with their labels, and its traces, into ``box``."""
    traces = list(figure.data)
    inner = Box(box.left + 160, box.top + 30, box.right - 8, box.bottom - 64)
    across = _axis(figure, traces, "x", inner.left, inner.right)
    down = {name: _axis(figure, traces, name, inner.bottom, inner.top) for name in sorted({trace.yaxis or "y" for trace in traces})}
    _labels(canvas, figure, across, down, inner, font)
    for shape in figure.layout.shapes:
        if shape.type == "line" and shape.xref == "paper" and shape.yref in (None, "y"):
            canvas.line((inner.left, down["y"].at(shape.y0), inner.right, down["y"].at(shape.y0)), _LIMIT, 1)
    for trace in traces:
        up = down[trace.yaxis or "y"]
        match trace.type:
            case "bar":
                _bars(canvas, trace, across, up, inner)
            case "heatmap":
                _cells(canvas, trace, across, up)
            case "scatter":
                _points(canvas, trace, across, up)


def _errors(trace: Any) -> list[float]:
    """Return the ends of the error bars, two for each point: above and below."""
    if trace.type != "scatter" or trace.error_y.array is None:
        return []
    below = trace.error_y.array if trace.error_y.arrayminus is None else trace.error_y.arrayminus
    bars = zip(trace.y, trace.error_y.array, below, strict=True)
    return [end for y, up, down in bars for end in ((y, y) if None in (y, up, down) else (y + up, y - down))]


def _axis(figure: "Figure", traces: Sequence[Any], name: str, start: float, end: float) -> _Axis:
    own = [trace for trace in traces if name == "x" or (trace.yaxis or "y") == name]
    values = [value for trace in own for value in (trace.x if name == "x" else [*trace.y, *_errors(trace)])]
    return _Axis(figure.layout[f"{name[0]}axis{name[1:]}"], values, start, end, name == "x" and any(trace.type == "bar" for trace in own))


def _labels(canvas: "ImageDraw", figure: "Figure", across: _Axis, down: dict[str, _Axis], inner: Box, font: Any) -> None:
    for axis in down.values():
        for y, text in axis.ticks():
            canvas.line((inner.left, y, inner.right, y), _GRID, 1)
            canvas.text((inner.left - 12, y), text[:16], _TEXT, font, anchor="rm")
    beyond = -math.inf
    for x, text in across.ticks():
        width = canvas.textlength(text, font)
        if x - width / 2 > beyond:  # skip labels that would overlap
            canvas.text((x, inner.bottom + 8), text, _TEXT, font, anchor="mt")
            beyond = x + width / 2 + 10
    titles = [figure.layout.xaxis.title.text, figure.layout.yaxis.title.text]
    said = ", ".join(title for title in titles if title)
    canvas.text(((inner.left + inner.right) / 2, inner.bottom + 36), said, _TEXT, font, anchor="mt")
    right = inner.right
    for trace in reversed([trace for trace in figure.data if trace.name and trace.showlegend is not False][:6]):
        canvas.text((right, inner.top - 8), trace.name[:24], _colour(trace), font, anchor="rb")
        right -= canvas.textlength(trace.name[:24], font) + 24


def _bars(canvas: "ImageDraw", trace: Any, across: _Axis, up: _Axis, inner: Box) -> None:
    wide = (trace.width if isinstance(trace.width, int | float) else 0.8) / 2
    for x, y in zip(trace.x, trace.y, strict=True):
        if y:
            canvas.rectangle((across.at(x - wide), min(up.at(y), inner.bottom - 1), across.at(x + wide), inner.bottom), _colour(trace))


def _cells(canvas: "ImageDraw", trace: Any, across: _Axis, up: _Axis) -> None:
    from plotly.colors import sample_colorscale

    known = [value for row in trace.z for value in row if value is not None]
    low = trace.zmin if trace.zmin is not None else min(known, default=0.0)
    high = trace.zmax if trace.zmax is not None else max(known, default=1.0)
    scale = [[position, _on_white(colour)] for position, colour in trace.colorscale] if trace.colorscale else "Viridis"
    palette = sample_colorscale(scale, _PALETTE + 1)
    lefts = _edges([across.at(x) for x in trace.x], len(trace.z[0]))
    tops = _edges([up.at(y) for y in trace.y], len(trace.z))
    for top, bottom, row in zip(tops[:-1], tops[1:], trace.z, strict=True):
        for left, right, value in zip(lefts[:-1], lefts[1:], row, strict=True):
            if value is not None:
                share = min(1.0, max(0.0, (value - low) / ((high - low) or 1)))
                colour = palette[round(share * _PALETTE)]
                (x0, x1), (y0, y1) = sorted((left, right)), sorted((top, bottom))
                gap = min(1.0, (x1 - x0) / 4, (y1 - y0) / 4)
                canvas.rectangle((x0 + gap, y0 + gap, x1 - gap, y1 - gap), colour)


def _on_white(colour: str) -> str:
    """Return an rgb or rgba colour as it is on a white card."""
    *parts, alpha = [*map(float, re.findall(r"[\d.]+", colour)), 1.0][:4]
    return f"rgb({', '.join(f'{255 + alpha * (part - 255):.0f}' for part in parts)})"


def _edges(positions: list[float], cells: int) -> list[float]:
    """Return the edges of this many cells along one axis, from their edges or their midpoints."""
    if len(positions) > cells:
        return positions
    size = (positions[-1] - positions[0]) / (cells - 1) if cells > 1 else _ONLY_CELL
    return [position - size / 2 for position in [*positions, positions[-1] + size]]


def _points(canvas: "ImageDraw", trace: Any, across: _Axis, up: _Axis) -> None:
    colour = _colour(trace)
    ends = _errors(trace)
    for x, above, under in zip(trace.x, ends[::2], ends[1::2], strict=False):
        if above is not None:
            canvas.line((across.at(x), up.at(above), across.at(x), up.at(under)), colour, 2)
    line: list[tuple[float, float]] = []
    for x, y in [*zip(trace.x, trace.y, strict=True), (None, None)]:
        if x is not None and y is not None:
            line.append((across.at(x), up.at(y)))
        else:  # a missing value ends the line
            if trace.fill == "toself" and len(line) > 2:
                canvas.polygon(line, fill=f"{colour}55")
            if len(line) > 1 and "lines" in (trace.mode or "lines"):
                canvas.line(line, colour, _LINE, joint="curve")
            if "markers" in (trace.mode or "lines"):
                for left, top in line:
                    canvas.ellipse((left - _MARKER, top - _MARKER, left + _MARKER, top + _MARKER), colour)
            line = []


def _colour(trace: Any) -> str:
    """Return the colour of a trace, as #rrggbb."""
    colour = (trace.line.color if trace.type == "scatter" else None) or trace.marker.color
    return colour if isinstance(colour, str) and colour.startswith("#") and len(colour) == 7 else COLOURS[0]
