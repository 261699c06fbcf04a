"""Progress and report of precision variants. Field names are the JSON contract; fields may be added, never renamed."""

from typing import TYPE_CHECKING, Literal

from analyzers.base import CheckpointFacts, Progress, Report
from analyzers.precision_variants.engine.measurements import Engine
from analyzers.precision_variants.fp16_passport import Fp16Passport
from analyzers.precision_variants.measurements import Inputs, Passes, Reference, Variant
from analyzers.precision_variants.request import PrecisionRequest

if TYPE_CHECKING:
    import pandas


class VariantProgress(Progress):
    """Progress within one run of the model. variant: name of the variant, or "reference"; finished: whether the variant is done.

    ``unit`` is "layers", two per layer and run (forward, backward); ``done`` never decreases and reaches ``total`` at the end.
    """

    variant: str
    finished: bool = False


class PrecisionReport(Report):
    """The growth of rounding error through the model in each variant. variants: by name, in the requested order.

    statement: the findings, one sentence each. engine: null without log-probabilities of an engine. fp16_passport: null in reports made
    before it was added.
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
    engine: Engine | None = None
    statement: str
    notes: tuple[str, ...]

    def tables(self) -> "dict[str, pandas.DataFrame]":
        """Return the report's tables by name; those on an engine if the report has one."""
        tables = super().tables()
        return {name: table for name, table in tables.items() if self.engine is not None or not name.startswith("engine")}
