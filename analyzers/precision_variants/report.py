"""Progress and report of precision variants. Field names are the JSON contract; fields may be added, never renamed."""

from typing import Literal

from analyzers.base import CheckpointFacts, Progress, Report
from analyzers.precision_variants.fp16_passport import Fp16Passport
from analyzers.precision_variants.measurements import Inputs, Passes, Reference, Variant
from analyzers.precision_variants.request import PrecisionRequest


class VariantProgress(Progress):
    """Progress within one run of the model. variant: name of the variant, or "reference"; finished: whether the variant is done.

    ``unit`` is "layers", two per layer and run (forward, backward); ``done`` never decreases and reaches ``total`` at the end.
    """

    variant: str
    finished: bool = False


class PrecisionReport(Report):
    """The growth of rounding error through the model in each variant. variants: by name, in the requested order.

    statement: the findings, one sentence each. fp16_passport: null in reports made before it was added.
    """

    analyzer: Literal["precision"] = "precision"
    schema_version: int = 1
    request: PrecisionRequest
    checkpoint: CheckpointFacts
    inputs: Inputs
    reference: Reference
    variants: dict[str, Variant]
    fp16_passport: Fp16Passport | None = None
    passes: Passes
    statement: str
    notes: tuple[str, ...]
