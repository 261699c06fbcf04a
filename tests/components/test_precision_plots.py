"""The figures of precision variants: what they draw, and where they put what has no place on their axes."""

from typing import Any

import pytest

from analyzers.precision_variants import PrecisionReport
from components.precision import plots
from tests.components.precision_reports import overflowing, precision_report


def _row(report: PrecisionReport, variant: str, kind: str, layer: int | None) -> Any:
    return next(row for row in report.variants[variant].tensors if (row.kind, row.layer) == (kind, layer))


@pytest.mark.parametrize(
    ("draw", "kind", "ends"), [(plots.forward, "hidden", ("logits", "loss")), (plots.backward, "hidden_grad", ("logits_grad",))]
)
def test_errors_are_drawn_by_depth_for_every_variant(draw: Any, kind: str, ends: tuple[str, ...]) -> None:
    found = precision_report()
    figure = draw(found)
    lines = [trace for trace in figure.data if trace.yaxis is None]
    assert [trace.name for trace in lines] == ["fp32", "bf16", "bf16_fp32_residual", "fp16", "mine"]
    assert figure.layout.yaxis.type == "log"
    for trace in lines[1:]:
        assert list(trace.x) == list(range(-1, 4 + len(ends)))
        rows = [_row(found, trace.name, kind, layer) for layer in range(-1, 4)] + [_row(found, trace.name, end, None) for end in ends]
        for value, row in zip(trace.y, rows, strict=True):
            assert value == (pytest.approx(100 * row.rms_rel) if row.rms_rel else None)
    assert list(figure.layout.xaxis.ticktext)[:2] == ["emb.", "0"]
    assert list(figure.layout.xaxis.ticktext)[-len(ends) :] == ["logits", "loss"][: len(ends)]


def _strip(figure: Any, name: str, axis: str) -> dict[Any, Any]:
    """The points in the strip ``axis`` ("y2" is exact, "y3" overflow) of a variant, by their place."""
    traces = [trace for trace in figure.data if trace.name == name and trace.yaxis == axis]
    return {x: said for trace in traces for x, y, said in zip(trace.x, trace.y, trace.customdata, strict=True) if y is not None}


def test_what_equals_the_reference_and_what_overflows_is_in_a_strip_of_its_own_and_breaks_the_line() -> None:
    figure: Any = plots.forward(precision_report())
    assert [*figure.data[0].y] == [None] * len(figure.data[0].x) and _strip(figure, "fp32", "y2").keys() == {*figure.data[0].x}
    assert list(figure.layout.yaxis2.ticktext) == ["exact"] and "yaxis3" not in figure.layout
    assert figure.layout.yaxis2.domain[1] < figure.layout.yaxis.domain[0] and figure.layout.xaxis.anchor == "y2"
    over = overflowing()
    assert over.reference.fp16_overflow is not None
    figure = plots.forward(over)
    fp16 = figure.data[1]
    first = over.reference.fp16_overflow.layer
    overflow, exact = _strip(figure, "fp16", "y3"), _strip(figure, "fp16", "y2")
    for layer, value in zip(fp16.x, fp16.y, strict=True):
        assert (value is None) == (layer >= first or layer in exact)
    assert overflow.keys() == {layer for layer in fp16.x if layer >= first}
    assert all("not finite" in said[1] for said in overflow.values())
    assert figure.layout.yaxis.domain[1] < figure.layout.yaxis3.domain[0]
