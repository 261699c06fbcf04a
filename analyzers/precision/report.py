"""The report of precision variants. Field names are the JSON contract; fields may be added, never renamed."""

import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal

from analyzers.core.columns import Column, Table
from analyzers.core.formatting import NOTHING, magnitude, power
from analyzers.core.report import CheckpointFacts, Report
from analyzers.core.rows import columns
from analyzers.precision.engine.measurements import Engine
from analyzers.precision.measurements import (
    Backward,
    Forward,
    Fp16,
    Headroom,
    Inputs,
    Logprobs,
    Reference,
    TensorError,
    Variant,
    short_layer,
)  # fmt: skip
from analyzers.precision.request import PrecisionRequest
from analyzers.precision.variants import described
from analyzers.precision.words import cause_text

_VARIANT = Column("variant", "Variant")
_LAYER = Column("layer", "Layer", cell=lambda row: "head" if row["head"] else short_layer(row["layer"]))


def _scale(row: Any) -> str:
    scale = row["loss_scale"]
    return "none" if scale is None else NOTHING if scale == 1 else power(round(math.log2(scale)))


def _first(key: str) -> Callable[[Any], str | None]:
    """Return the function that writes where a variant overflows first."""
    return lambda row: None if row[key] is None else row[key].where(row["layers"])


def _variants(report: "PrecisionReport") -> Iterator[dict[str, Any]]:
    for name, run in report.variants.items():
        yield {"variant": name, "layers": report.reference.layers} | vars(run) | vars(run.summary) | {"settings": described(run.settings)}


def _of_variants(field: str) -> Callable[["PrecisionReport"], Iterator[dict[str, Any]]]:
    """Return the function that yields the rows of all variants in a field."""

    def rows(report: "PrecisionReport") -> Iterator[dict[str, Any]]:
        for name, variant in report.variants.items():
            found = getattr(variant, field)
            yield from ({"variant": name, **vars(row)} for row in (found if isinstance(found, tuple) else [found]))

    return rows


def _headroom(report: "PrecisionReport") -> Iterator[dict[str, Any]]:
    for row in report.reference.headroom:
        yield {**vars(row), "head": row.layer == report.reference.layers}


class PrecisionReport(Report):
    """The growth of rounding error through the model in each variant. variants: by name, in the requested order.

    engine: null without log-probabilities of an engine.
    """

    DERIVED: ClassVar[tuple[Table, ...]] = (
        Table("variants", _variants, (_VARIANT, *columns(Forward)), title="Relative error, forward"),
        Table(
            "backward",
            _variants,
            (_VARIANT, *columns(Backward), Column("loss_scale", "Loss scale", cell=_scale)),
            title="Relative error of gradients",
        ),
        Table(
            "settings",
            _variants,
            (
                _VARIANT,
                Column("settings", "Settings"),
                Column("attention", "Attention"),
                Column("loss", "Loss", magnitude),
                Column("overflow", "First overflow", value=_first("overflow")),
                Column("overflow_bw", "backward", value=_first("overflow_bw")),
            ),
            title="Variants",
        ),
        Table("logprobs", _of_variants("logprobs"), (_VARIANT, *columns(Logprobs)), title="Log-probabilities"),
        Table("headroom", _headroom, (_LAYER, *columns(Headroom)[1:]), title="fp16 headroom of each layer of the reference, in bits"),
        Table(
            "causes",
            lambda report: report.engine.causes if report.engine is not None else (),
            (
                Column("cause", "Cause", cell=cause_text),
                Column("value"),
                Column("explains", "Explains"),
                Column("remaining", "Ratio that remains", magnitude, value="remaining.value"),
                Column("gain", "Makes it smaller by", magnitude),
            ),
            title="What explains the engine's difference",
        ),
        Table("tensors", _of_variants("tensors"), (_VARIANT, *columns(TensorError)), title="Tensors"),
    )

    analyzer: Literal["precision"] = "precision"
    schema_version: int = 1
    request: PrecisionRequest
    checkpoint: CheckpointFacts
    inputs: Inputs
    reference: Reference
    variants: dict[str, Variant]
    fp16: Fp16
    engine: Engine | None = None
