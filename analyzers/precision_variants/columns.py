"""The tables of precision variants."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from analyzers.columns import Column, Table, formatted, shape_column
from analyzers.formatting import NOTHING, count, ends, magnitude, power, share
from analyzers.precision_variants.measurements import Headroom, Logprobs, ParameterKind, Summary, TensorError

if TYPE_CHECKING:
    from analyzers.precision_variants.report import PrecisionReport

_VARIANT = Column("variant", "Variant", width=158)
_FORWARD = {"embeddings": "Embeddings", "mid_median": "Median layer", "mid_max": "Worst layer", "logits": "Logits", "head": "Loss"}
_NATS = {"logprob_mean": "Log-probability, mean", "logprob_max": "Log-probability, max"}
_BACKWARD = {
    "logits_bw": "Logits",
    "head_bw": "Head",
    "mid_median_bw": "Median layer",
    "mid_max_bw": "Worst layer",
    "first_layer_bw": "First layer",
    "parameters_bw": "Parameters",
}
_KINDS = {
    "hidden": "hidden state",
    "hidden_grad": "hidden gradient",
    "logits": "logits",
    "logits_grad": "logits gradient",
    "parameter_grad": "parameter gradient",
    "logprob": "log-probability",
    "loss": "loss",
    "inside": "module output",
    "inside_grad": "module gradient",
}
_DIGITS = 2  # Significant digits of the smallest value of a column.
_IN_LAYER = re.compile(r".*?\.\d+\.(?=\D)")


def within_layer(name: str) -> str:
    """Return the name of a module or parameter within its layer; the full name outside layers."""
    prefix = _IN_LAYER.match(name)
    return name[prefix.end() :] if prefix else name


def short_layer(layer: int, layers: int) -> str:
    """Return a short name of a layer, for axes and columns."""
    return "emb." if layer < 0 else "head" if layer >= layers else str(layer)


def decimals(values: Sequence[float | None], scale: float = 1) -> Callable[[float], str]:
    """Return a format for a column of scaled values, with the decimals that give the smallest nonzero value two digits."""
    smallest = min((scale * abs(value) for value in values if value), default=1.0)
    digits = max(0, _DIGITS - 1 - math.floor(math.log10(smallest)))
    return lambda value: f"{scale * value:.{digits}f}" if value else "0"


def _measures(report: "PrecisionReport", titles: dict[str, str], scale: float) -> Iterator[Column]:
    for key, title in titles.items():
        yield Column(key, title, decimals([getattr(variant.summary, key) for variant in report.variants.values()], scale))


def _variants(report: "PrecisionReport") -> Iterator[dict[str, Any]]:
    for name, variant in report.variants.items():
        yield {"variant": name, "layers": report.reference.layers, **vars(variant), "settings": variant.written, **vars(variant.summary)}


FORWARD = Table(
    "variants",
    _variants,
    lambda report: (_VARIANT, *_measures(report, _FORWARD, 100), *_measures(report, _NATS, 1)),
    files=("variant", "settings", "attention", "loss_scale", "trials", "loss", "clipped", *Summary.model_fields),
    title="Forward: relative error in %, log-probabilities in nats",
)


def _scale(row: Any) -> str:
    scale = row["loss_scale"]
    return "none" if scale is None else NOTHING if scale == 1 else power(round(math.log2(scale)))


# Columns are in the order of the backward pass; policy gradients also have the share of ratios that are clipped.
BACKWARD = Table(
    "",
    _variants,
    lambda report: (
        _VARIANT,
        *_measures(report, _BACKWARD, 100),
        Column("loss_scale", "Loss scale", magnitude, cell=_scale),
        *([Column("clipped", "Clipped", share)] if report.request.loss != "ce" else []),
    ),
    title="Backward: relative error of gradients in %",
)


def _place(key: str) -> Callable[[Any], str]:
    """Return a function that writes where a variant overflows first."""

    def place(row: Any) -> str:
        overflow, layers = row[key], row["layers"]
        if overflow is None:
            return NOTHING
        return f"{short_layer(overflow.layer, layers)}: {overflow.name}" if 0 <= overflow.layer < layers else overflow.name

    return place


SETTINGS = Table(
    "",
    _variants,
    (
        _VARIANT,
        Column("settings", "Settings"),
        Column("attention", "Attention"),
        Column("overflow", "First overflow", cell=_place("overflow")),
        Column("overflow_bw", "First overflow, backward", cell=_place("overflow_bw")),
    ),
)


def _headroom(report: "PrecisionReport") -> Iterator[dict[str, Any]]:
    runs = {"reference": report.reference.headroom} | {name: variant.headroom for name, variant in report.variants.items()}
    for variant, rows in runs.items():
        yield from ({"variant": variant, "layers": report.reference.layers, **vars(row)} for row in rows)


def _bits(key: str, title: str, what: str) -> tuple[Column, Column]:
    """Return the columns for the headroom, and for the largest value with the name of its tensor within the layer."""

    def largest(row: Any) -> str:
        value, where = row[f"{key}_max"], row[f"{key}_at"]
        return NOTHING if value is None or where is None else f"{magnitude(value)} in {within_layer(where)}"

    return Column(key, f"{title}, bits", lambda bits: f"{bits:.2f}"), Column(f"{key}_max", f"Largest {what}", cell=largest)


HEADROOM = Table(
    "headroom",
    _headroom,
    (
        Column("layer", "Layer", cell=lambda row: short_layer(row["layer"], row["layers"])),
        *_bits("forward", "Forward", "value"),
        *_bits("backward", "Backward", "gradient"),
        *_bits("weights", "Weights", "weight"),
    ),
    files=("variant", *Headroom.model_fields),
    title="fp16 headroom: bits between the largest magnitude and 65504",
)


def of_reference(report: "PrecisionReport") -> list[Any]:
    """Return the headroom of the reference, one row per layer."""
    return [row for row in _headroom(report) if row["variant"] == "reference"]


def kinds(report: "PrecisionReport") -> dict[str, dict[str, float | None]]:
    """Return the error of gradients in each variant by kind of parameter, in the order of the model."""
    errors: dict[str, dict[str, float | None]] = {}
    for name, variant in report.variants.items():
        for row in variant.parameter_kinds:
            errors.setdefault(row.kind, {})[name] = row.rms_rel
    return errors


def _each_kind(report: "PrecisionReport") -> Iterator[Column]:
    yield Column("kind", "Kind")
    rows = kinds(report).values()
    for name in report.variants:
        yield Column(name, name, decimals([row.get(name) for row in rows], 100))


PARAMETERS = Table(
    "",
    lambda report: ({"kind": kind, **errors} for kind, errors in kinds(report).items()),
    lambda report: tuple(_each_kind(report)),
    title="Relative error of gradients in %",
)
LOGPROBS = Table(
    "logprobs",
    lambda report: ({"variant": name, **vars(variant.logprobs)} for name, variant in report.variants.items()),
    (
        _VARIANT,
        *formatted(magnitude, mean="Mean |d|", max="Max |d|", bias="Bias"),
        *formatted(lambda value: f"{value:.6f}", slope="Slope", correlation="Correlation"),
        *formatted(share, ratio_mean="Token ratio, mean", ratio_max="Token ratio, max", sequence_ratio_mean="Sequence ratio, mean"),
        *formatted(share, sequence_ratio_max="Sequence ratio, max", outside_clip="Outside GSPO clip"),
    ),
    files=("variant", *Logprobs.model_fields),
)


def _of_variants(field: str) -> Callable[["PrecisionReport"], Iterator[dict[str, Any]]]:
    def rows(report: "PrecisionReport") -> Iterator[dict[str, Any]]:
        for name, variant in report.variants.items():
            yield from ({"variant": name, "layers": report.reference.layers, **vars(row)} for row in getattr(variant, field))

    return rows


def _layer(row: Any) -> str:
    return NOTHING if row["layer"] is None else short_layer(row["layer"], row["layers"])


TENSORS = Table(
    "tensors",
    _of_variants("tensors"),
    (
        _VARIANT,
        Column("name", "Tensor", width=310),
        Column("kind", "Kind", cell=lambda row: _KINDS[row["kind"]], width=156),
        Column("layer", "Layer", str, cell=_layer),
        shape_column("shape", "Shape"),
        Column("rms_rel", "Error", share),
        Column("low", "Range", share, cell=lambda row: ends(row["low"], row["high"]), width=172),
        Column("max_rel", "Max error", share),
        Column("nonfinite", "Not finite", count),
        *formatted(magnitude, max="Max |x - ref|", bias="Bias"),
        *formatted(lambda value: f"{value:.7g}", slope="Slope", correlation="Correlation"),
        *formatted(magnitude, residual="Residual", rms="rms", ref_rms="rms of reference"),
        Column("elements", "Elements", count),
    ),
    files=("variant", *TensorError.model_fields),
    title="Tensors",
)


def _engine(field: str) -> Callable[["PrecisionReport"], Iterator[dict[str, Any]]]:
    def rows(report: "PrecisionReport") -> Iterator[dict[str, Any]]:
        for row in getattr(report.engine, field) if report.engine is not None else ():
            yield vars(row)

    return rows


def _interval(size: Any) -> str:
    return (
        NOTHING
        if size is None or size.value is None
        else f"{size.value:.3g} ({ends_of(size)})"
        if size.low is not None
        else f"{size.value:.3g}"
    )


def ends_of(size: Any) -> str:
    """Return the ends of a ratio's interval."""
    return f"{size.low:.3g} to {size.high:.3g}"


CAUSES = Table(
    "engine_causes",
    _engine("causes"),
    (
        Column("what", "Cause"),
        Column("explains", "Explains", cell=lambda row: {"all": "all", "part": "a part", "elimination": "by elimination"}[row["explains"]]),
        Column("remaining", "What remains, in units of bf16's deviation", cell=lambda row: _interval(row["remaining"])),
    ),
    files=("kind", "what", "explains", "gain", "gain_low", "gain_high", "told_apart"),
    title="What explains the difference",
)
ENGINE = Table(
    "engine_variants",
    _engine("variants"),
    (
        _VARIANT,
        Column("difference", "Its own mean |d|, nats", magnitude, cell=lambda row: magnitude(row["difference"].mean_abs)),
        Column("ratio", "Engine's mean |e| / mean |d|", cell=lambda row: _interval(row["ratio"])),
    ),
    files=("variant",),
    title="The engine's difference from fp32 compared with each variant's",
)
WORST = Table(
    "engine_worst",
    _engine("worst"),
    (
        Column("sequence", "Sequence, from 0", count),
        Column("position", "Position, from 0", count),
        Column("text", "Token", cell=lambda row: repr(row["text"]) if row["text"] else str(row["token"])),
        Column("engine", "Engine", "{:.5g}".format, cell=lambda row: "-inf" if row["engine"] is None else f"{row['engine']:.5g}"),
        *formatted(lambda value: f"{value:.5g}", reference="fp32", bf16="bf16"),
    ),
    files=("sequence", "position", "token", "text", "engine", "reference", "bf16"),
    title="Tokens with the largest differences",
)


def _summary(report: "PrecisionReport") -> Iterator[dict[str, Any]]:
    overflow = report.reference.fp16_overflow
    yield {
        "model": report.checkpoint.ref,
        "commit": report.checkpoint.short_commit(),
        "weights": report.reference.weights,
        "data": report.inputs.source,
        "sequences": report.inputs.sequences,
        "length": report.inputs.length,
        "loss": report.request.loss,
        "reference_loss": report.reference.loss,
        "variants": ", ".join(report.variants),
        "fp16_overflow_layer": None if overflow is None else overflow.layer,
        "fp16_overflow_at": None if overflow is None else overflow.name,
        "statement": report.statement,
    }


TABLES = (
    Table("summary", _summary),
    FORWARD,
    TENSORS,
    Table("parameter_kinds", _of_variants("parameter_kinds"), files=("variant", *ParameterKind.model_fields)),
    HEADROOM,
    LOGPROBS,
    CAUSES,
    ENGINE,
    WORST,
)
