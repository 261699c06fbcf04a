"""Errors in rows: of each kind of parameter, of each module within layers, and of log-probabilities."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from components import numbers
from components.plots.precision_variants.marks import LogAxis, marked, shortened
from components.plots.style import exactly, layout, text
from components.precision.tables import kinds

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from analyzers.precision_variants.report import PrecisionReport

# Measures of the differences of log-probabilities.
DIFFERENCES = ("mean |d|", "largest |d|", "|bias|")
_ROW = 24
# Beside the axis there is room for so many characters on a narrow screen.
_NAME = 26


def parameters(report: "PrecisionReport") -> "Figure":
    """A row for each kind of parameter, a mark for each variant: rms_rel of its gradients, in percent."""
    found = {name: {row.kind: row.rms_rel for row in variant.parameter_kinds} for name, variant in report.variants.items()}
    return _shares(found, kinds(report))


def inside(report: "PrecisionReport") -> "Figure":
    """A row for each module within layers: the median over layers of its rms_rel, in percent."""
    return _modules(report, "inside")


def inside_backward(report: "PrecisionReport") -> "Figure":
    """The same of gradients."""
    return _modules(report, "inside_grad")


def logprobs(report: "PrecisionReport") -> "Figure":
    """A row for each variant, a mark for each measure of the differences, in nats."""
    of = {name: variant.logprobs for name, variant in report.variants.items()}
    measures = (
        {name: each.mean for name, each in of.items()},
        {name: each.max for name, each in of.items()},
        {name: None if each.bias is None else abs(each.bias) for name, each in of.items()},
    )
    found = dict(zip(DIFFERENCES, measures, strict=True))
    return _drawn(found, list(of), "nats", lambda value: f"{numbers.magnitude(value)} nats")


def _modules(report: "PrecisionReport", kind: str) -> "Figure":
    errors: dict[str, dict[str, list[float]]] = {name: {} for name in report.variants}
    for name, variant in report.variants.items():
        for row in variant.tensors:
            if row.kind == kind:
                errors[name].setdefault(row.name, []).extend([] if row.rms_rel is None else [row.rms_rel])
    found = {name: {module: median(each) if each else None for module, each in rows.items()} for name, rows in errors.items()}
    return _shares(found, list(dict.fromkeys(module for rows in found.values() for module in rows)))


def _shares(found: Mapping[str, Mapping[str, float | None]], names: Sequence[str]) -> "Figure":
    percent = {name: {row: None if error is None else 100 * error for row, error in rows.items()} for name, rows in found.items()}
    return _drawn(percent, names, "error (rms), %", lambda value: exactly(value / 100))


def _drawn(found: Mapping[str, Mapping[str, float | None]], names: Sequence[str], title: str, said: Callable[[float], str]) -> "Figure":
    """found: name of a mark -> row -> value. What is 0 stands at the left edge; nothing stands for what is missing."""
    from plotly.graph_objects import Figure, Scatter

    axis = LogAxis.of(value for rows in found.values() for value in rows.values())
    figure = Figure(layout=layout(72 + _ROW * max(1, len(names))))
    for index, (name, rows) in enumerate(found.items()):
        style = marked(index)
        drawn = [(place, row, value) for place, row in enumerate(names) if (value := rows.get(row)) is not None]
        figure.add_trace(
            Scatter(
                x=[value or axis.edges[0] for _, _, value in drawn],
                y=[place for place, _, _ in drawn],
                name=name,
                mode="markers",
                marker={
                    "symbol": [style["symbol"] if value else "triangle-left-open" for _, _, value in drawn],
                    "size": 8,
                    "color": style["color"],
                },
                customdata=[[text(row), said(value)] for _, row, value in drawn],
                cliponaxis=False,
                hovertemplate=f"%{{customdata[0]}}<br>{text(name)}: %{{customdata[1]}}<extra></extra>",
            )
        )
    figure.update_xaxes(title=title, showgrid=True, gridcolor="#7c828d", **axis.settings())
    figure.update_yaxes(
        tickvals=list(range(len(names))),
        ticktext=[text(_short(name)) for name in names],
        range=[len(names) - 0.4, -0.6],
        showgrid=False,
        automargin=True,
    )
    return figure


def _short(name: str) -> str:
    """Without what most names begin and end with."""
    return shortened(name.removesuffix(".weight").removeprefix("model."), _NAME)
