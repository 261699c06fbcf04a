"""Statistics of one tensor from its counts, and of several tensors together."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import sqrt
from typing import NamedTuple, Self

import numpy as np

from analyzers.checkpoints import Tensor, row_length
from analyzers.dtype_detection.count import Counted
from analyzers.dtype_detection.lineage import Judgement, judge
from analyzers.dtype_detection.report import Counts, Extremes, LayerRow, Representable, TensorLineage, TensorRow
from analyzers.dtype_detection.trainability import untouched
from analyzers.grids import OnGrids, on_grids
from analyzers.numerics import BinGroups, BitHistogram, bins

FORMATS = ("fp16", "bf16", "tf32", "fp8_e4m3", "fp8_e5m2")

# Shares that quick mode estimates with an interval, in the order of `share_counts`
SHARES = (*(f"representable.{name}" for name in FORMATS), "zero", "fp16_underflow", "fp16_subnormal", "fp16_inexact_subnormal")


class Tallies(NamedTuple):
    """Numbers of values: read, finite and nonzero, those of `report.Counts`, and those exact in each of ``FORMATS``."""

    values_read: int = 0
    nonzero: int = 0
    zero: int = 0
    nan: int = 0
    inf: int = 0
    fp16_overflow: int = 0
    fp16_underflow: int = 0
    fp16_subnormal: int = 0
    fp16_inexact_subnormal: int = 0
    fp16: int = 0
    bf16: int = 0
    tf32: int = 0
    fp8_e4m3: int = 0
    fp8_e5m2: int = 0

    @classmethod
    def of(cls, values: BitHistogram) -> Self:
        """Tally a histogram."""
        tallies = cls(*values.count_each(_tallied(values.dtype)))
        return tallies._replace(fp16_overflow=tallies.fp16_overflow + values.near_overflow)


@cache
def _tallied(dtype: str) -> BinGroups:
    """Group the bins of ``dtype`` by the tallies that count them."""
    table = bins(dtype)
    masks = [np.ones_like(table.zero), table.finite_nonzero, table.zero, table.nan, table.inf, table.overflow, table.underflow]
    subnormal = [table.subnormal, table.subnormal & ~table.exact["fp16_grid"]]
    return BinGroups.of([*masks, *subnormal, *(table.exact[name] for name in FORMATS)])


def share_counts(values: BitHistogram) -> tuple[list[int], list[int]]:
    """Return (tested, positive) for each of ``SHARES``: representability among finite nonzero values, the rest among all."""
    tallies = Tallies.of(values)
    tested = [tallies.nonzero] * len(FORMATS) + [tallies.values_read] * (len(SHARES) - len(FORMATS))
    return tested, [getattr(tallies, name.removeprefix("representable.")) for name in SHARES]


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts behind a row of the report, which can be summed over tensors. Extremes are None if nothing was read."""

    tallies: Tallies
    abs_min: float | None
    abs_min_nonzero: float | None
    abs_max: float | None
    square: float | None

    @property
    def counts(self) -> Counts:
        """Counts in the form of the report."""
        return Counts(**{name: getattr(self.tallies, name) for name in Counts.model_fields})

    @property
    def norm(self) -> float | None:
        """Frobenius norm; None if nothing finite was read."""
        return sqrt(self.square) if self.square is not None else None

    @property
    def representable(self) -> Representable:
        """Shares of the finite nonzero values that each format holds exactly."""
        whole = self.tallies.nonzero
        return Representable(**{name: getattr(self.tallies, name) / whole if whole else None for name in FORMATS})


def statistics(values: BitHistogram, elements: int) -> Statistics:
    """Compute statistics of a tensor of ``elements``, of which ``values`` were read; the sum of squares is scaled up to all."""
    tallies = Tallies.of(values)
    abs_min, abs_min_nonzero, abs_max = values.extremes()
    square = None if abs_max is None else values.squares * (elements / tallies.values_read)
    return Statistics(tallies, abs_min, abs_min_nonzero, abs_max, square)


def summed(parts: Sequence[Statistics]) -> Statistics:
    """Combine the statistics of several tensors."""
    squares = [p.square for p in parts if p.square is not None]
    return Statistics(
        Tallies(*map(sum, zip(*(part.tallies for part in parts), strict=True))),
        abs_min=min((p.abs_min for p in parts if p.abs_min is not None), default=None),
        abs_min_nonzero=min((p.abs_min_nonzero for p in parts if p.abs_min_nonzero is not None), default=None),
        abs_max=max((p.abs_max for p in parts if p.abs_max is not None), default=None),
        square=sum(squares) if squares else None,
    )


@dataclass(frozen=True, slots=True)
class TensorResult:
    """One tensor with its statistics, its own lineage, and the answer of `trainability.untouched`."""

    tensor: Tensor
    statistics: Statistics
    judgement: Judgement
    untouched: tuple[float, float] | None


EMPTY = summed(())
UNREAD = Judgement("undecided", (), ())


def tensor_result(tensor: Tensor, counted: Counted) -> TensorResult:
    """Compute statistics and lineage of one tensor."""
    values = counted.histogram
    # Values decoded with scales are float32 only as an intermediate: their bits prove nothing.
    judgement = UNREAD
    if tensor.scale is None:
        on = on_grids(counted.grids, counted.values, tensor.shape) if counted.grids else OnGrids()
        judgement = judge(values, on, counted.exact_rows, row_length(tensor))
    return TensorResult(tensor, statistics(values, tensor.elements), judgement, untouched(tensor, values))


def extremes(results: Sequence[TensorResult], exact: bool) -> Extremes:
    """Compute extremes over tensors: magnitudes over all values, norms over tensors whose norm is not zero."""
    parts = [r.statistics for r in results if r.statistics.square is not None]
    norms = [norm for part in parts if (norm := part.norm)]
    whole = summed(parts)
    largest = max((r for r in results if r.statistics.abs_max is not None), key=lambda r: r.statistics.abs_max or 0.0, default=None)
    return Extremes(
        abs_max_in=largest.tensor.name if largest is not None else None,
        abs_min=whole.abs_min,
        abs_min_nonzero=whole.abs_min_nonzero,
        abs_max=whole.abs_max,
        norm_min=min(norms, default=None),
        norm_max=max(norms, default=None),
        exact=exact,
    )


def tensor_row(result: TensorResult) -> TensorRow:
    """Build one tensor's row of the report."""
    tensor, judged, own = result.tensor, result.judgement, result.statistics
    return TensorRow(
        name=tensor.name,
        dtype=tensor.dtype,
        shape=tensor.shape,
        role=tensor.role,
        layer=tensor.layer,
        parameters=tensor.elements,
        values_read=own.tallies.values_read,
        lineage=TensorLineage(verdict=judged.verdict, passed_through=judged.passed_through, evidence=judged.evidence, grid=judged.grid),
        fossil_rows=judged.fossil_rows,
        abs_max=own.abs_max,
        norm=own.norm,
        abs_min_nonzero=own.abs_min_nonzero,
        abs_min=own.abs_min,
        **own.counts.model_dump(),
        representable=own.representable,
    )


def layer_rows(results: Sequence[TensorResult]) -> Iterator[LayerRow]:
    """Build one row per layer and role, in layer order; tensors outside the layers come last."""
    groups: dict[tuple[bool, int, str], list[TensorResult]] = {}
    for result in results:
        tensor = result.tensor
        groups.setdefault((tensor.layer is None, tensor.layer or 0, tensor.role), []).append(result)
    for _, group in sorted(groups.items()):
        read = [r for r in group if r.statistics.square is not None]
        whole = summed([r.statistics for r in read])
        parameters = sum(r.tensor.elements for r in read)
        yield LayerRow(
            layer=group[0].tensor.layer,
            role=group[0].tensor.role,
            tensors=len(group),
            parameters=sum(r.tensor.elements for r in group),
            abs_min_nonzero=whole.abs_min_nonzero,
            abs_max=whole.abs_max,
            rms=sqrt(whole.square / parameters) if whole.square is not None and parameters else None,
        )
