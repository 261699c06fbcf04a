"""The report as pandas tables."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from analyzers.precision_variants.report import Headroom, Logprobs, ParameterKind, PrecisionReport, Summary, TensorError

if TYPE_CHECKING:
    import pandas

_VARIANT = ("variant", "settings", "attention", "loss_scale", "trials", "loss")


def tables(report: PrecisionReport) -> "dict[str, pandas.DataFrame]":
    """``summary`` (one row), ``variants``, ``tensors``, ``parameter_kinds``, ``headroom``, ``logprobs``."""
    import pandas

    def rows(lines: Iterator[dict[str, Any]], *columns: str) -> "pandas.DataFrame":
        return pandas.DataFrame(list(lines), columns=list(columns))

    def each(name: str) -> Iterator[dict[str, Any]]:
        for variant, found in report.variants.items():
            yield from ({"variant": variant, **row.model_dump()} for row in getattr(found, name))

    of_reference = ({"variant": "reference", **row.model_dump()} for row in report.reference.headroom)
    logprobs = ({"variant": name, **found.logprobs.model_dump()} for name, found in report.variants.items())
    return {
        "summary": pandas.DataFrame([summary_row(report)]),
        "variants": rows(_variants(report), *_VARIANT, *Summary.model_fields),
        "tensors": rows(each("tensors"), "variant", *TensorError.model_fields),
        "parameter_kinds": rows(each("parameter_kinds"), "variant", *ParameterKind.model_fields),
        "headroom": rows(iter([*of_reference, *each("headroom")]), "variant", *Headroom.model_fields),
        "logprobs": rows(logprobs, "variant", *Logprobs.model_fields),
    }


def summary_row(report: PrecisionReport) -> dict[str, Any]:
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


def _variants(report: PrecisionReport) -> Iterator[dict[str, Any]]:
    for name, found in report.variants.items():
        line = {"variant": name, "settings": found.written, "attention": found.attention, "loss_scale": found.loss_scale}
        yield line | {"trials": found.trials, "loss": found.loss, **found.summary.model_dump()}
