"""The progress and the report of precision variants. Field names are the JSON contract; fields may be added, never renamed."""

from typing import TYPE_CHECKING, Literal

from analyzers.base import CheckpointFacts, NextStep, Progress, Report
from analyzers.precision_variants.headline import advice, headline
from analyzers.precision_variants.request import PrecisionRequest
from analyzers.precision_variants.results import Inputs, Passes, Reference, Variant
from analyzers.precision_variants.tables import tables

if TYPE_CHECKING:
    import pandas


class VariantProgress(Progress):
    """Progress within one run of the model. variant: its name, "reference" for the reference; finished: this variant is done.

    ``unit`` is "layers", two per layer and run (forward, backward); ``done`` never falls and reaches ``total`` at the end.
    """

    variant: str
    finished: bool = False


class PrecisionReport(Report):
    """How rounding error grows through the model in each variant. variants: by name, in the order requested.

    statement: the findings, one sentence each.
    """

    analyzer: Literal["precision"] = "precision"
    schema_version: int = 1
    request: PrecisionRequest
    checkpoint: CheckpointFacts
    inputs: Inputs
    reference: Reference
    variants: dict[str, Variant]
    passes: Passes
    statement: str
    notes: tuple[str, ...]

    def headline(self) -> str:
        """See `base.Report.headline`."""
        return headline(self)

    def next_step(self) -> NextStep:
        """`headline.advice`, and the passport of the model."""
        return NextStep(advice(self), "dtype", self.checkpoint.ref)

    def tables(self) -> "dict[str, pandas.DataFrame]":
        """See `tables.tables`."""
        return tables(self)
