"""Defines the request and the report of compare. Field names are the JSON contract; fields may be added, never renamed."""

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from analyzers.comparison.parents import ParentsReport
from analyzers.comparison.parents.report import ANALYSIS_VERSION as PARENTS_VERSION
from analyzers.comparison.parents.report import Candidate, Verdict, distinct_names, few_and_different
from analyzers.comparison.sparsity import SparsityReport
from analyzers.comparison.sparsity.report import ANALYSIS_VERSION as SPARSITY_VERSION
from analyzers.comparison.sparsity.report import DEFAULT_ETA, Eta, Spectral
from analyzers.core import limits
from analyzers.core.columns import Table
from analyzers.core.notes import Note
from analyzers.core.options import Option
from analyzers.core.records import Record
from analyzers.core.report import CheckpointFacts, Report
from analyzers.core.request import PASTED, REFERENCE, WeightsRequest
from analyzers.core.rows import Rows, Shown

if TYPE_CHECKING:
    import pandas

# Raised with the versions of the analyses that this one is composed of; its own is the first digit.
ANALYSIS_VERSION = 10_000 + 100 * PARENTS_VERSION + SPARSITY_VERSION


class CompareRequest(WeightsRequest):
    """Checkpoints to compare, and options of the two analyses."""

    models: Annotated[tuple[str, ...], PASTED, Option(one="model")] = Field(
        min_length=1,
        description=f"The checkpoints, up to {limits.CANDIDATES}, each {REFERENCE} or /file; the last is explained by the others, a base "
        "comes first. One alone is compared with the base_model of its model card (on the page and in the API also with models of the "
        "library).",
    )
    eta: Eta = DEFAULT_ETA
    spectral: Spectral = False
    # Models that the caller's library suggests: compared with a single model together with those of its card.
    suggested: tuple[str, ...] = Field(default=(), max_length=limits.CANDIDATES)

    @field_validator("models")
    @classmethod
    def _few_and_different(cls, models: tuple[str, ...]) -> tuple[str, ...]:
        return few_and_different(models, "models")


class Relation(Record):
    """Relation of the models to each other.

    kind: the verdict of parents on ``model``, the descendant if there is one. sources: the models that the verdict names. direction:
    "shown" by the weights, or "assumed", in the order of the request, because weights do not show which model came first; null if the
    relation has none. changed_share: of the weights that differ in bf16 between the base and the last model of ``sparsity``.
    """

    kind: Verdict
    model: str
    sources: tuple[str, ...]
    direction: Literal["shown", "assumed"] | None
    changed_share: float | None


class Copy(Record):
    """One of several quantized models, most of which are copies of one model.

    bytes, bits_per_weight: of the whole checkpoint; error: |X - P| / |P| over all matrices, once factors of channels are undone;
    within_half_step, ratio: of quantized tensors. for_its_size: error x 2^bits_per_weight, relative to the least one: a bit more halves the
    error of rounding. why: what it is instead, if not a copy: then the figures are null.
    """

    ref: Annotated[str, Shown("Copy")]
    method: Annotated[str | None, Shown("Method")]
    bytes: Annotated[int, Shown("Size", "size")]
    bits_per_weight: Annotated[float, Shown("Bits per weight", "ratio")]
    error: Annotated[float | None, Shown("Error", "share", "|X - P| / |P|, P being the source.")] = None
    within_half_step: Annotated[float | None, Shown("Within half a step", "share", "Share of values within half a step of the source.")] = (
        None
    )
    ratio: Annotated[float | None, Shown("Ratio", "ratio", "The error in units of that of rounding to nearest.")] = None
    for_its_size: Annotated[float | None, Shown("For its size", "ratio", "Error times 2^(bits per weight); the least is 1.")] = None
    not_source: Annotated[int | None, Shown("Not the source's", "count", "Tensors that do not hold the source's values.")] = None
    why: Annotated[Note | None, Shown("Not a copy", help="What it is instead.")] = None


class CompareReport(Report):
    """The report on what ``models`` are to each other.

    models: as named in the request. parents: the model that is explained, by the others; sparsity: what changed on the way to it, null if
    the models are not related; copies: of one source, the nearest first, if there are several, then other quantized models. coverage: of
    each checkpoint, by the reports that the answer rests on, the smaller one where both have it.
    """

    APART: ClassVar[tuple[str, ...]] = ("parents_", "sparsity_")

    analyzer: Literal["compare"] = "compare"
    schema_version: int = 1
    request: CompareRequest
    models: tuple[CheckpointFacts, ...]
    relation: Relation
    parents: ParentsReport
    sparsity: SparsityReport | None
    copies: Annotated[tuple[Copy, ...], Rows("Quantized copies")] = ()
    mode: Literal["quick", "exact"]
    bytes_read: int

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The models that the analysis found itself, on the card or in the library."""
        return tuple(row for row in self.parents.candidates if row.source != "named")

    def subject(self) -> dict[str, str]:
        """Return all models that were compared, those named first."""
        return {"models": ", ".join(distinct_names([*self.models, *self.candidates]))}

    def parts(self) -> Sequence[Report]:
        """Return the reports that this one is composed of."""
        return [self.parents, *([self.sparsity] if self.sparsity is not None else [])]

    def bytes_of_sample(self) -> tuple[int, int] | None:
        """Return the bytes read and those of all checkpoints, if a sample was read."""
        return self.parents.bytes_of_sample()

    def declared_tables(self) -> list[Table]:
        """Return the tables of both reports, under their names."""
        own = [table for table in super().declared_tables() if table.key == "copies"]
        return own + [_of_part(part.analyzer, table) for part in self.parts() for table in part.declared_tables()]

    def full_tables(self) -> "dict[str, pandas.DataFrame]":
        """Return `tables` with every row."""
        return self.model_copy(update={part.analyzer: part.full() for part in self.parts()}).tables()


def _of_part(name: str, table: Table) -> Table:
    """Return a table of the report in the field ``name``."""
    part, columns = attrgetter(name), table.columns
    of = columns if not callable(columns) else lambda report: columns(part(report))
    return replace(table, key=f"{name}_{table.key}", rows=lambda report: table.rows(part(report)), columns=of)
