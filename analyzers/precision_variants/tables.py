"""The report as pandas tables."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from analyzers.extras import extras_explained
from analyzers.precision_variants.results import Headroom, Logprobs, ParameterKind, Summary, TensorError
from analyzers.tables import table

if TYPE_CHECKING:
    import pandas

    from analyzers.precision_variants.report import PrecisionReport

_VARIANT = ("attention", "loss_scale", "trials", "loss", "clipped")


@extras_explained()
def tables(report: "PrecisionReport") -> "dict[str, pandas.DataFrame]":
    """``summary`` (one row), ``variants`` (a row each: the columns of `Summary`), ``tensors``, ``parameter_kinds``, ``headroom`` (that of
    the reference as variant "reference"), ``logprobs``.
    """
    import pandas

    def by_variant(name: str) -> Iterator[dict[str, Any]]:
        for variant, result in report.variants.items():
            yield from ({"variant": variant, **row.model_dump()} for row in getattr(result, name))

    variants = (
        {"variant": name, "settings": result.written, **result.model_dump(include={*_VARIANT}), **result.summary.model_dump()}
        for name, result in report.variants.items()
    )
    reference_headroom = ({"variant": "reference", **row.model_dump()} for row in report.reference.headroom)
    logprobs = ({"variant": name, **result.logprobs.model_dump()} for name, result in report.variants.items())
    return {
        "summary": pandas.DataFrame([summary_row(report)]),
        "variants": table(variants, "variant", "settings", *_VARIANT, *Summary.model_fields),
        "tensors": table(map(_with_shape, by_variant("tensors")), "variant", *TensorError.model_fields),
        "parameter_kinds": table(by_variant("parameter_kinds"), "variant", *ParameterKind.model_fields),
        "headroom": table([*reference_headroom, *by_variant("headroom")], "variant", *Headroom.model_fields),
        "logprobs": table(logprobs, "variant", *Logprobs.model_fields),
    }


def summary_row(report: "PrecisionReport") -> dict[str, Any]:
    """One row per report."""
    overflow = report.reference.fp16_overflow
    return {
        "model": report.checkpoint.ref,
        "commit": report.checkpoint.commit[:12],
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


def _with_shape(row: dict[str, Any]) -> dict[str, Any]:
    """The shape as text, such as 2x47x64: a table has no lists."""
    return row | {"shape": None if row["shape"] is None else "x".join(map(str, row["shape"]))}
