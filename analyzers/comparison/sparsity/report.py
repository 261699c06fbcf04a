"""The request and the report of update sparsity. Field names are the JSON contract.

An element is *changed* when both its values, rounded to bf16 (nearest, ties to even), differ: +0 is -0, a NaN equals any NaN,
an infinity only itself. It is changed by the *probe* when |tuned - base| > eta max(|base|, |tuned|), of the stored values in float64
(Zhu et al., arXiv 2511.08567). It is *swallowed* when the stored values differ and it is not changed.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, field_validator

from analyzers.checkpoints import ROLES
from analyzers.comparison.sparsity import rows
from analyzers.comparison.sparsity.published import published
from analyzers.core import limits
from analyzers.core.columns import Column, Table
from analyzers.core.options import Option
from analyzers.core.records import Interval, Record
from analyzers.core.report import CheckpointFacts, Report
from analyzers.core.request import PASTED, REFERENCE, WeightsRequest
from analyzers.core.rows import Rows, columns

# Raised whenever the same request would give another result
ANALYSIS_VERSION = 15

DEFAULT_ETA = 1e-3


def _in_range(eta: float) -> float:
    if not 0 < eta < 1:
        raise ValueError(f"eta must lie between 0 and 1, both excluded, not {eta:g}: a usual value is 1e-3")
    return eta


Eta = Annotated[
    float,
    AfterValidator(_in_range),
    Option("Probe: eta, the smallest relative change that counts", info=""),
    Field(description="Threshold of the probe: a weight changed if |v - w| > eta max(|w|, |v|); between 0 and 1."),
]
Spectral = Annotated[
    bool,
    Option("Also decompose matrices (singular values, subspaces; reads them whole, takes longer)", info=""),
    Field(description="Also compare singular values and subspaces of matrices, which takes minutes and needs torch."),
]


class SparsityRequest(WeightsRequest):
    """Checkpoints to compare, and options of the comparison. Each of ``tuned`` is compared with the base and with the one before it."""

    base: Annotated[str, PASTED] = Field(description=f"The checkpoint before training: {REFERENCE} or /file.")
    tuned: Annotated[tuple[str, ...], PASTED, Option(one="tuned")] = Field(
        min_length=1, description=f"The tuned checkpoints: one to {limits.TRAJECTORY}, in the order of training."
    )
    eta: Eta = DEFAULT_ETA
    spectral: Spectral = False

    @field_validator("tuned")
    @classmethod
    def _not_too_many(cls, tuned: tuple[str, ...]) -> tuple[str, ...]:
        if len(tuned) > limits.TRAJECTORY:
            raise ValueError(f"at most {limits.TRAJECTORY} checkpoints are compared with a base, not {len(tuned):,}")
        return tuned


# What becomes of the tensors of each list in `rows.Unmatched`.
_KINDS = {
    "missing": "only in the base",
    "extra": "only in the tuned checkpoint",
    "integers": "no plain floats",
    "misshapen": "another shape",
    "resized": "compared in the rows of both",
    "renamed": "compared under another name",
    "relaid": "compared in another layout",
    "tied": "counted as the embedding",
}


# Columns of sparsities, and of the ends of their range, of which people read the complement
_SPARSITIES = ("sparsity", "probe_sparsity", "step_sparsity", "min", "max")


def sparsity_columns(row: type[Record], *first: Column) -> Iterator[Column]:
    """Yield the columns of a class of rows after ``first``: people read the share that changed, 1 - sparsity, files have sparsity."""
    yield from first
    for column in columns(row):
        if column.title and column.key in _SPARSITIES:

            def changed(row: Any, read: Callable[[Any], Any] = column.value_of) -> float | None:
                sparsity: float | None = read(row)
                return None if sparsity is None else 1 - sparsity

            yield replace(column, value=changed, only="people")
            yield Column(column.key, value=column.value)
        else:
            yield column


def _roles(report: "SparsityReport") -> Iterator[dict[str, Any]]:
    yield from ({"role": role, **vars(row)} for role, row in report.roles.items())


def _magnitudes(report: "SparsityReport") -> Iterator[dict[str, Any]]:
    for update, of_all in (("absolute", report.magnitudes.absolute), ("relative", report.magnitudes.relative)):
        for over, sizes in (("all", of_all), ("changed", of_all.changed_only)):
            yield {"update": update, "over": over, **vars(sizes)}


def _survival(report: "SparsityReport") -> list[rows.Survival]:
    return [found for found in report.adapter.survival.values() if found is not None] if report.adapter else []


def _unmatched(report: "SparsityReport") -> Iterator[dict[str, Any]]:
    yield from ({"kind": kind, **vars(each)} for kind in _KINDS for each in getattr(report.unmatched, kind))


def _published(report: "SparsityReport") -> list[rows.PublishedRow]:
    """Return the published fine-tunes, and this one among them: if values differ, since a copy is none."""
    if not report.moved or report.sparsity is None:
        return []
    last, base = report.tuned[-1].ref, report.base.ref
    pair = rows.PublishedRow(finetuned=last, sparsity=report.sparsity, base_model=base, algorithm="this pair", data="")
    return sorted((*published(), pair), key=lambda row: row.sparsity)


_LAYER = sorted(sparsity_columns(rows.LayerRow), key=lambda column: column.key != "layer")
# Shares unchanged by role, in files.
_BY_ROLE = tuple(Column(role, value=f"roles.{role}") for role in ROLES)


class SparsityReport(Report):
    """Result of a comparison: the changes from ``base`` to the last of ``tuned``, and with several tuned checkpoints the steps between.

    sparsity = 1 - changed / compared; num_changed + num_unchanged = values_compared: all of total_parameters, or those read in quick mode.
    total_parameters: elements of the matched tensors. Quick mode only: blocks, the number of blocks read; interval, of sparsity, over
    independently sampled blocks. adapter: what the adapter is, and what survives merging it, if the last tuned checkpoint is the base with
    an adapter; else null.
    """

    DERIVED: ClassVar[tuple[Table, ...]] = (
        Table("roles", _roles, tuple(sparsity_columns(rows.RoleRow, Column("role", "Role"))), title="Roles"),
        Table("layers", lambda report: report.layers, (*_LAYER, *_BY_ROLE), title="Layers"),
        Table("trajectory", lambda report: report.trajectory, (*sparsity_columns(rows.TrajectoryRow), *_BY_ROLE), title="Checkpoints"),
        Table("adapter_survival", _survival, columns(rows.Survival), title="What survives a merge"),
        Table(
            "magnitudes",
            _magnitudes,
            (Column("update", "Update"), Column("over", "Over"), *columns(rows.Sizes)),
            title="Sizes of the updates",
        ),
        Table(
            "unmatched",
            _unmatched,
            (Column("kind", "What", cell=lambda row: _KINDS[row["kind"]]), *columns(rows.Listed)),
            title="Tensors that are not compared one to one",
        ),
        Table("published", _published, tuple(sparsity_columns(rows.PublishedRow)), title="Among published fine-tunes"),
        Table("tensors", lambda report: report.tensors, tuple(sparsity_columns(rows.TensorRow)), title="Tensors"),  # may be long: the last
    )

    APART: ClassVar[tuple[str, ...]] = ("magnitudes", "unmatched")

    analyzer: Literal["sparsity"] = "sparsity"
    schema_version: int = 1
    request: SparsityRequest
    base: CheckpointFacts
    tuned: tuple[CheckpointFacts, ...]
    mode: Literal["quick", "exact"]
    bytes_read: int
    requests: int
    values_compared: int
    sparsity: float | None
    num_changed: int
    num_unchanged: int
    total_parameters: int
    update_fraction: float | None
    eta: float
    probe: rows.Probe
    swallowed: rows.Swallowed
    interval: Interval | None
    blocks: int | None = None
    roles: dict[str, rows.RoleRow]
    layers: tuple[rows.LayerRow, ...]
    adapter: rows.Adapter | None = None
    magnitudes: rows.Magnitudes
    ulp_histogram: Annotated[tuple[rows.UlpBin, ...], Rows("Distance in bf16 ULPs", key="ulp")]
    energy: Annotated[tuple[rows.Energy, ...], Rows("Energy of the update")]
    unmatched: rows.Unmatched
    trajectory: tuple[rows.TrajectoryRow, ...]
    overlap: Annotated[tuple[rows.Overlap, ...], Rows("Overlap of the changed weights")]
    spectral: Annotated[tuple[rows.Spectrum, ...], Rows("Singular values and subspaces")]
    tensors: tuple[rows.TensorRow, ...]

    def subject(self) -> dict[str, str]:
        """Return the references of the base and of the last tuned checkpoint."""
        return {"base": self.base.ref, "tuned": self.tuned[-1].ref}

    @property
    def moved(self) -> bool:
        """Return whether a value read differs by an update, and not by a conversion alone."""
        return bool(self.num_changed or (self.swallowed.count and self.swallowed.meaningful))

    def bytes_of_sample(self) -> tuple[int, int] | None:
        """Return the bytes of the sample and of all checkpoints; matrices that were decomposed are read in addition, and not counted."""
        if self.values_compared == self.total_parameters:
            return None
        every = sum(side.bytes for side in (self.base, *self.tuned))
        return (round(every * self.values_compared / self.total_parameters) if self.spectral else self.bytes_read), every
