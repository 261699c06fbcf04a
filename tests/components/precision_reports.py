"""Precision reports of the tiny samples on a few tokens, and one with hostile text in every place that comes from outside."""

from functools import cache
from typing import Any

from analyzers.precision_variants import PrecisionReport, PrecisionRequest, analyze
from tests.components.dtype_reports import HOSTILE, of_model

VARIANTS = ("fp32", "bf16", "bf16_fp32_residual", "fp16", "mine: dtype=bf16, fp32=norms")


def precision_report(model: str = "sample:tiny-bf16", **asked: Any) -> PrecisionReport:
    """Return the report on two short sequences, or with other options. Cached by request."""
    return _report(model, tuple(sorted({"variants": VARIANTS, "sequences": 2, "sequence_length": 24, **asked}.items())))


def overflowing() -> PrecisionReport:
    """Return a report on a variant in fp16 that overflows and one in bf16 that does not, with the modules inside the layers."""
    return precision_report("sample:tiny-overflow", variants=("bf16", "fp16"), inside=True, loss="gspo", advantages=(1.0, -0.5))


def hostile_precision_report() -> PrecisionReport:
    """Return a report with HTML, an override of the reading direction and a very long word wherever text comes from outside."""
    found = of_model(HOSTILE, overflowing())
    nasty = f"{HOSTILE}\u202e{'x' * 5_000}"
    inputs = found.inputs.model_copy(update={"source": HOSTILE, "commit": HOSTILE, "preview": nasty})
    variants = {name: _renamed(each, nasty) for name, each in found.variants.items()}
    levels = tuple(
        row.model_copy(update={"forward_at": nasty, "backward_at": nasty, "weights_at": nasty}) for row in found.reference.headroom
    )
    over = found.reference.fp16_overflow
    assert over is not None
    reference = found.reference.model_copy(update={"headroom": levels, "fp16_overflow": over.model_copy(update={"name": nasty})})
    assert found.fp16_passport.first_overflow is not None
    first = found.fp16_passport.first_overflow.model_copy(update={"module": nasty, "excerpt": nasty})
    passport = found.fp16_passport.model_copy(update={"first_overflow": first})
    return found.model_copy(update={"inputs": inputs, "variants": variants, "reference": reference, "fp16_passport": passport})


def _renamed(variant: Any, nasty: str) -> Any:
    return variant.model_copy(
        update={
            "tensors": tuple(row.model_copy(update={"name": f"{row.name} {nasty}"}) for row in variant.tensors),
            "overflow": variant.overflow and variant.overflow.model_copy(update={"name": nasty}),
            "attention": nasty,
        }
    )


@cache
def _report(model: str, asked: tuple[tuple[str, Any], ...]) -> PrecisionReport:
    *_, last = analyze(PrecisionRequest(model=model, **dict(asked)))
    assert isinstance(last, PrecisionReport)
    return last
