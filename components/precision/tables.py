"""The tables of precision variants: summary, headroom, kinds of parameters, log-probabilities, and all compared tensors."""

import heapq
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from analyzers import limits
from analyzers.precision_variants.report import PrecisionReport
from analyzers.precision_variants.results import Overflow, TensorError, Variant
from components.precision.text import KINDS, short_layer, within_layer
from components.results.data_table import Column, DataTable, optional
from components.text import numbers
from components.text.markup import table
from components.text.plain_text import shown

_FORWARD = {
    "Embeddings": "embeddings",
    "Mid median": "mid_median",
    "Mid max": "mid_max",
    "Logits": "logits",
    "Loss": "head",
}
_NATS = {"Log-prob., mean": "logprob_mean", "Log-prob., max": "logprob_max"}
_BACKWARD = {
    "Logits": "logits_bw",
    "Head": "head_bw",
    "Mid median": "mid_median_bw",
    "Mid max": "mid_max_bw",
    "First layer": "first_layer_bw",
    "Parameters": "parameters_bw",
}


def forward(report: PrecisionReport) -> str:
    """A row per variant; a column has as many decimals as its smallest value needs."""
    columns = [*_columns(report, _FORWARD, 100), *_columns(report, _NATS, 1)]
    return _summary(report, "Forward: relative error in %, log-probabilities in nats", (*_FORWARD, *_NATS), columns)


def backward(report: PrecisionReport) -> str:
    """The same for gradients, in the order computed; for policy gradients also the share of ratios that are clipped."""
    columns = [*_columns(report, _BACKWARD, 100), [_scale(variant) for variant in report.variants.values()]]
    titles = [*_BACKWARD, "Loss scale"]
    if report.request.loss != "ce":
        columns.append([numbers.share(variant.clipped) for variant in report.variants.values()])
        titles.append("Clipped")
    return _summary(report, "Backward: relative error of gradients in %", titles, columns)


def settings(report: PrecisionReport) -> str:
    """The settings of each variant, and where it overflows first."""
    layers = report.reference.layers
    rows = [
        (name, each.written, each.attention, _place(each.overflow, layers), _place(each.overflow_bw, layers))
        for name, each in report.variants.items()
    ]
    return _dense(table(("Variant", "Settings", "Attention", "First overflow", "First overflow, backward"), rows, stacked=True))


def headroom(report: PrecisionReport) -> str:
    """A row per layer of the reference."""
    rows = [
        (
            short_layer(row.layer, report.reference.layers),
            *(_bits(row.forward), _largest(row.forward_max, row.forward_at)),
            *(_bits(row.backward), _largest(row.backward_max, row.backward_at)),
            *(_bits(row.weights), _largest(row.weights_max, row.weights_at)),
        )
        for row in report.reference.headroom
    ]
    titles = ("Layer", "Forward, bits", "Largest value", "Backward, bits", "Largest gradient", "Weights, bits", "Largest weight")
    caption = "fp16 headroom: bits between the largest magnitude and 65504"
    return _dense(table(titles, rows, frozenset({1, 3, 5}), caption, stacked=True))


def parameters(report: PrecisionReport) -> str:
    """A row per kind, a column per variant."""
    names = kinds(report)
    columns: list[list[str]] = [names]
    for variant in report.variants.values():
        errors = {row.kind: row.rms_rel for row in variant.parameter_kinds}
        columns.append(_decimals([errors.get(name) for name in names], 100))
    titles = ("Kind", *report.variants)
    return _dense(
        table(titles, zip(*columns, strict=True), frozenset(range(1, len(titles))), "Relative error of gradients in %", stacked=True)
    )


def logprobs(report: PrecisionReport) -> str:
    """A row per variant."""
    rows = [
        (
            name,
            *map(numbers.magnitude, (each.mean, each.max, each.bias)),
            *(f"{value:.6f}" if value is not None else numbers.NOTHING for value in (each.slope, each.correlation)),
            *map(numbers.share, (each.ratio_mean, each.ratio_max, each.sequence_ratio_mean, each.sequence_ratio_max, each.outside_clip)),
        )
        for name, each in ((name, variant.logprobs) for name, variant in report.variants.items())
    ]
    titles = (
        "Variant", "Mean |d|", "Max |d|", "Bias", "Slope", "Correlation", "Token ratio, mean", "Token ratio, max",
        "Sequence ratio, mean", "Sequence ratio, max", "Outside GSPO clip",
    )  # fmt: skip
    return _dense(table(titles, rows, frozenset(range(1, len(titles))), stacked=True))


def kinds(report: PrecisionReport) -> list[str]:
    """Kinds of parameters, in the order of the model."""
    return list(dict.fromkeys(row.kind for variant in report.variants.values() for row in variant.parameter_kinds))


def _columns(report: PrecisionReport, fields: dict[str, str], scale: float) -> list[list[str]]:
    summaries = [variant.summary for variant in report.variants.values()]
    return [_decimals([getattr(summary, field) for summary in summaries], scale) for field in fields.values()]


def _decimals(values: Sequence[float | None], scale: float) -> list[str]:
    """As many decimals for all as the smallest value needs."""
    from analyzers.precision_variants.text import decimals

    written = decimals([None if value is None else scale * value for value in values])
    return [numbers.NOTHING if value is None else text for value, text in zip(values, written, strict=True)]


def _summary(report: PrecisionReport, caption: str, titles: Sequence[str], columns: Sequence[Sequence[str]]) -> str:
    rows = zip(report.variants, *columns, strict=True)
    return _dense(table(("Variant", *titles), rows, frozenset(range(1, len(titles) + 1)), caption, stacked=True))


def _dense(listed: str) -> str:
    return f'<div class="m-dense">{listed}</div>'


def _largest(value: float | None, where: str | None) -> str:
    """The value and its tensor, without the name of the layer."""
    return numbers.NOTHING if value is None or where is None else f"{numbers.magnitude(value)} in {within_layer(where)}"


def _scale(variant: Variant) -> str:
    scale = variant.loss_scale
    return "none" if scale is None else numbers.NOTHING if scale == 1 else numbers.power(round(math.log2(scale)))


def _place(overflow: Overflow | None, layers: int) -> str:
    if overflow is None:
        return numbers.NOTHING
    return f"{short_layer(overflow.layer, layers)}: {overflow.name}" if 0 <= overflow.layer < layers else overflow.name


def _bits(bits: float | None) -> str:
    return numbers.NOTHING if bits is None else f"{bits:.1f}"


def left_out(report: PrecisionReport) -> int:
    """The number of rows omitted: a page shows at most `limits.REPORT_TENSORS`."""
    return max(0, sum(len(variant.tensors) for variant in report.variants.values()) - limits.REPORT_TENSORS)


class _Row(NamedTuple):
    """A tensor in a variant, of a model with so many layers."""

    variant: str
    tensor: TensorError
    layers: int


def _rows(report: PrecisionReport) -> list[_Row]:
    """All rows by variant, in the order computed; those with the largest errors if they are too many."""
    rows = [_Row(name, row, report.reference.layers) for name, variant in report.variants.items() for row in variant.tensors]
    if left_out(report):
        largest = heapq.nlargest(limits.REPORT_TENSORS, range(len(rows)), key=lambda index: _size(rows[index].tensor))
        rows = [rows[index] for index in sorted(largest)]
    return rows


def _size(row: TensorError) -> float:
    return math.inf if row.rms_rel is None else row.rms_rel


def _range(row: _Row) -> str:
    low, high = row.tensor.low, row.tensor.high
    return numbers.NOTHING if low is None or high is None else f"{numbers.share(low)} to {numbers.share(high)}"


def _measure(name: str, width: int, field: str, show: Callable[[Any], str] = numbers.magnitude) -> Column:
    return Column(name, width, lambda row: getattr(row.tensor, field), show)


_exactly = optional(lambda value: f"{value:.7g}")
_COLUMNS = (
    Column("Variant", 158, "variant"),
    Column("Tensor", 310, lambda row: shown(row.tensor.name)),
    Column("Kind", 150, lambda row: KINDS[row.tensor.kind]),
    Column("Layer", 70, lambda row: row.tensor.layer, str, read=lambda row: _layer(row)),
    Column("Shape", 118, lambda row: numbers.NOTHING if row.tensor.shape is None else "x".join(map(str, row.tensor.shape))),
    _measure("Error", 92, "rms_rel", numbers.share),
    Column("Range", 172, lambda row: row.tensor.low, numbers.share, read=_range),
    _measure("Max error", 102, "max_rel", numbers.share),
    _measure("Not finite", 96, "nonfinite", numbers.count),
    _measure("Max |x - ref|", 116, "max"),
    _measure("Bias", 96, "bias"),
    _measure("Slope", 92, "slope", _exactly),
    _measure("Correlation", 108, "correlation", _exactly),
    _measure("Residual", 96, "residual"),
    _measure("rms", 92, "rms"),
    _measure("rms of reference", 132, "ref_rms"),
    _measure("Elements", 106, "elements", numbers.count),
)
TENSORS: DataTable[PrecisionReport] = DataTable("Tensors", "m-tensors", _COLUMNS, _rows)


def _layer(row: _Row) -> str:
    return numbers.NOTHING if row.tensor.layer is None else short_layer(row.tensor.layer, row.layers)
