"""Errors by depth: a line per variant, from the embeddings to the loss, and the same for gradients."""

from typing import TYPE_CHECKING

from components.plots.marks import LogAxis, marked
from components.plots.style import exactly, layout, text
from components.precision.text import layer_name
from components.text import numbers

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from analyzers.precision_variants.report import PrecisionReport, TensorError, Variant


def forward(report: "PrecisionReport") -> "Figure":
    """rms_rel of hidden states by layer, then of the logits and the loss, in percent."""
    return _errors(report, "hidden", ("logits", "loss"))


def backward(report: "PrecisionReport") -> "Figure":
    """rms_rel of the gradients with respect to hidden states and logits, in percent."""
    return _errors(report, "hidden_grad", ("logits_grad",))


def _errors(report: "PrecisionReport", kind: str, ends: tuple[str, ...]) -> "Figure":
    from plotly.graph_objects import Figure, Scatter

    layers = report.reference.layers
    lines = [(name, _by_depth(variant, kind, ends, layers)) for name, variant in report.variants.items()]
    axis = LogAxis.of(None if row.rms_rel is None else 100 * row.rms_rel for _, rows in lines for row in rows.values())
    figure = Figure(layout=layout(360))
    for index, (name, rows) in enumerate(lines):
        style = marked(index)
        marks = [_mark(row, axis, style["symbol"]) for row in rows.values()]
        figure.add_trace(
            Scatter(
                x=list(rows),
                y=[value for value, _ in marks],
                name=name,
                mode="lines+markers",
                line={"color": style["color"], "dash": style["dash"], "width": 2},
                marker={"symbol": [symbol for _, symbol in marks], "size": 7, "color": style["color"]},
                customdata=[_hover(row, layers) for row in rows.values()],
                cliponaxis=False,
                hovertemplate=f"{text(name)}, %{{customdata[0]}}<br>%{{customdata[1]}}%{{customdata[2]}}<extra></extra>",
            )
        )
    every = max(1, -(-layers // 8))
    ticks = [-1, *range(0, layers, every), layers, *([layers + 1] if len(ends) > 1 else [])]
    named = {-1: "emb.", layers: "logits", layers + 1: "loss"}
    if layers - ticks[-len(ends) - 1] < every:  # the last layer label would overlap that of the logits
        ticks.remove(ticks[-len(ends) - 1])
    figure.update_xaxes(
        title="layer",
        tickvals=ticks,
        ticktext=[named.get(tick, str(tick)) for tick in ticks],
        range=[-1.3, layers + len(ends) - 0.7],
        showgrid=False,
    )
    figure.update_yaxes(title="relative error (rms), %", **axis.settings())
    return figure


def _by_depth(variant: "Variant", kind: str, ends: tuple[str, ...], layers: int) -> "dict[int, TensorError]":
    """Position on the axis -> row, in the order of the axis."""
    rows = {row.layer: row for row in variant.tensors if row.kind == kind and row.layer is not None}
    rows |= {layers + ends.index(row.kind): row for row in variant.tensors if row.kind in ends}
    return dict(sorted(rows.items()))


def _mark(row: "TensorError", axis: LogAxis, symbol: str) -> tuple[float, str]:
    """Height and marker; zero and non-finite errors are at the edges of the axis."""
    if row.nonfinite or row.rms_rel is None:
        return axis.edges[1], "x"
    return (100 * row.rms_rel, symbol) if row.rms_rel else (axis.edges[0], "triangle-down-open")


def _hover(row: "TensorError", layers: int) -> list[str]:
    where = layer_name(row.layer, layers) if row.layer is not None else {"loss": "the loss"}.get(row.kind, "the logits")
    if row.nonfinite:
        return [where, f"{row.nonfinite:,} of {row.elements:,} values are not finite", ""]
    spread = "" if row.low is None or row.high is None else f"<br>sequences: {numbers.share(row.low)} to {numbers.share(row.high)}"
    return [where, exactly(row.rms_rel), spread]
