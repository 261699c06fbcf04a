"""The tables under the figures, in HTML: the summary, headroom, kinds of parameters, modules, log-probabilities."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from components.precision.names import short_layer, within_layer
from components.text import numbers
from components.text.markup import table

if TYPE_CHECKING:
    from analyzers.precision_variants.report import Overflow, PrecisionReport, Variant

_FORWARD = {
    "Embeddings": "embeddings",
    "Middle, median": "mid_median",
    "Middle, worst": "mid_max",
    "Logits": "logits",
    "Loss": "head",
}
_NATS = {"Log-prob., mean": "logprob_mean", "Log-prob., worst": "logprob_max"}
_BACKWARD = {
    "Logits": "logits_bw",
    "Head": "head_bw",
    "Middle, median": "mid_median_bw",
    "Middle, worst": "mid_max_bw",
    "First layer": "first_layer_bw",
    "Parameters": "parameters_bw",
}


def forward(report: "PrecisionReport") -> str:
    """A row for each variant; a column has as many decimals as its smallest value needs."""
    columns = [*_columns(report, _FORWARD, 100), *_columns(report, _NATS, 1)]
    return _summary(report, "Forward: error in %, of log-probabilities in nats", (*_FORWARD, *_NATS), columns)


def backward(report: "PrecisionReport") -> str:
    """The same of gradients, in the order in which they are computed."""
    columns = [*_columns(report, _BACKWARD, 100), [_scale(variant) for variant in report.variants.values()]]
    return _summary(report, "Backward: error of gradients in %", (*_BACKWARD, "Loss scale"), columns)


def settings(report: "PrecisionReport") -> str:
    """What each variant is, and where it overflows first."""
    layers = report.reference.layers
    rows = [
        (name, each.written, each.attention, _place(each.overflow, layers), _place(each.overflow_bw, layers))
        for name, each in report.variants.items()
    ]
    return _dense(table(("Variant", "Settings", "Attention", "Overflows first", "Backward"), rows, stacked=True))


def headroom(report: "PrecisionReport") -> str:
    """A row for each layer of the reference."""
    rows = [
        (
            short_layer(row.layer, report.reference.layers),
            *(_bits(row.forward), _largest(row.forward_max, row.forward_at)),
            *(_bits(row.backward), _largest(row.backward_max, row.backward_at)),
            *(_bits(row.weights), _largest(row.weights_max, row.weights_at)),
        )
        for row in report.reference.headroom
    ]
    titles = ("Layer", "Forward, bits", "Largest number", "Backward, bits", "Largest gradient", "Weights, bits", "Largest weight")
    caption = "Headroom of fp16: bits between the largest number and 65504"
    return _dense(table(titles, rows, frozenset({1, 3, 5}), caption, stacked=True))


def parameters(report: "PrecisionReport") -> str:
    """A row for each kind, a column for each variant."""
    names = kinds(report)
    columns: list[list[str]] = [names]
    for variant in report.variants.values():
        errors = {row.kind: row.rms_rel for row in variant.parameter_kinds}
        columns.append(_decimals([errors.get(name) for name in names], 100))
    titles = ("Kind", *report.variants)
    return _dense(table(titles, zip(*columns, strict=True), frozenset(range(1, len(titles))), "Error of gradients in %", stacked=True))


def logprobs(report: "PrecisionReport") -> str:
    """A row for each variant."""
    rows = [
        (
            name,
            *map(numbers.magnitude, (found.mean, found.max, found.bias)),
            *(f"{each:.6f}" if each is not None else numbers.NOTHING for each in (found.slope, found.correlation)),
            *map(
                numbers.share, (found.ratio_mean, found.ratio_max, found.sequence_ratio_mean, found.sequence_ratio_max, found.outside_clip)
            ),
        )
        for name, found in ((name, variant.logprobs) for name, variant in report.variants.items())
    ]
    titles = (
        "Variant", "Mean |d|", "Worst |d|", "Bias", "Slope", "Correlation", "Token ratio, mean", "Token ratio, worst",
        "Sequence ratio, mean", "Sequence ratio, worst", "Clipped",
    )  # fmt: skip
    return _dense(table(titles, rows, frozenset(range(1, len(titles))), stacked=True))


def kinds(report: "PrecisionReport") -> list[str]:
    """Kinds of parameters, in the order of the model."""
    return list(dict.fromkeys(row.kind for variant in report.variants.values() for row in variant.parameter_kinds))


def _columns(report: "PrecisionReport", fields: dict[str, str], scale: float) -> list[list[str]]:
    of = [variant.summary for variant in report.variants.values()]
    return [_decimals([getattr(summary, field) for summary in of], scale) for field in fields.values()]


def _decimals(values: Sequence[float | None], scale: float) -> list[str]:
    """With as many decimals as the smallest needs."""
    from analyzers.precision_variants.text import decimals

    written = decimals([None if value is None else scale * value for value in values])
    return [numbers.NOTHING if value is None else text for value, text in zip(values, written, strict=True)]


def _summary(report: "PrecisionReport", caption: str, titles: Sequence[str], columns: Sequence[Sequence[str]]) -> str:
    rows = zip(report.variants, *columns, strict=True)
    return _dense(table(("Variant", *titles), rows, frozenset(range(1, len(titles) + 1)), caption, stacked=True))


def _dense(listed: str) -> str:
    return f'<div class="m-dense">{listed}</div>'


def _largest(value: float | None, where: str | None) -> str:
    """The number and where it is, without the name of the layer."""
    return numbers.NOTHING if value is None or where is None else f"{numbers.magnitude(value)} in {within_layer(where)}"


def _scale(variant: "Variant") -> str:
    scale = variant.loss_scale
    return "none" if scale is None else numbers.NOTHING if scale == 1 else numbers.power(round(math.log2(scale)))


def _place(overflow: "Overflow | None", layers: int) -> str:
    if overflow is None:
        return numbers.NOTHING
    return f"{short_layer(overflow.layer, layers)}: {overflow.name}" if 0 <= overflow.layer < layers else overflow.name


def _bits(bits: float | None) -> str:
    return numbers.NOTHING if bits is None else f"{bits:.1f}"
