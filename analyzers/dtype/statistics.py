"""Statistics of one tensor from its counts, and of several tensors together: extremes, layers, grids, risk in fp16."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import sqrt
from typing import NamedTuple, Self

import numpy as np

from analyzers.checkpoints import ROLES, Tensor, row_length
from analyzers.dtype.count import Counted
from analyzers.dtype.lineage import Judgement, judge
from analyzers.dtype.rows import Counts, Extremes, Fp16Risk, Grid, LayerRow, Representable, Risk, RiskLevel, TensorLineage, TensorRow
from analyzers.dtype.trainability import untouched
from analyzers.grids import OnGrids, TensorGrid, on_grids
from analyzers.numerics import BinGroups, BitHistogram, bins
from analyzers.numerics.bare_codes import bare_codes
from analyzers.numerics.conversions import values_of

FORMATS = ("fp16", "bf16", "tf32", "fp8_e4m3", "fp8_e5m2")

# The largest code of the format whose codes are smallest, fp4: weights hardly reach it.
LEAST_CODE = 6.0

# One weight in ten thousand lost to zero, or one in a hundred rounded among the subnormals, is worth mentioning.
_UNDERFLOW_SHARE = 1e-4
_INEXACT_SHARE = 1e-2

# Shares that quick mode estimates with an interval, in the order of `share_counts`
SHARES = (*(f"representable.{name}" for name in FORMATS), "zero", "fp16_underflow", "fp16_subnormal", "fp16_inexact_subnormal")


class Statistics(NamedTuple):
    """Numbers of values, and extremes, which can be summed over tensors.

    The first are those read, those finite and nonzero, those of `report.Counts`, and those exact in each of ``FORMATS``. Extremes are None
    if nothing finite was read; square: sum of squares, scaled up to a whole tensor.
    """

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
    abs_min: float | None = None
    abs_min_nonzero: float | None = None
    abs_max: float | None = None
    square: float | None = None

    @classmethod
    def of(cls, values: BitHistogram, elements: int = 0) -> Self:
        """Compute the statistics of a tensor of ``elements``, of which ``values`` were read."""
        own = cls(*values.count_each(_tallied(values.dtype)))
        low, low_nonzero, high = values.extremes()
        return own._replace(
            fp16_overflow=own.fp16_overflow + values.near_overflow,
            abs_min=low,
            abs_min_nonzero=low_nonzero,
            abs_max=high,
            square=None if high is None else values.squares * (elements / own.values_read),
        )

    @classmethod
    def together(cls, parts: Sequence["Statistics"]) -> "Statistics":
        """Combine the statistics of several tensors."""
        whole = cls(*(sum(column) for column in zip(*(part[:-4] for part in parts), strict=True)))
        squares = [part.square for part in parts if part.square is not None]
        return whole._replace(
            abs_min=min((part.abs_min for part in parts if part.abs_min is not None), default=None),
            abs_min_nonzero=min((part.abs_min_nonzero for part in parts if part.abs_min_nonzero is not None), default=None),
            abs_max=max((part.abs_max for part in parts if part.abs_max is not None), default=None),
            square=sum(squares) if squares else None,
        )

    @property
    def counts(self) -> Counts:
        """Counts in the form of the report."""
        return Counts(**{name: getattr(self, name) for name in Counts.model_fields})

    @property
    def norm(self) -> float | None:
        """Frobenius norm; None if nothing finite was read."""
        return sqrt(self.square) if self.square is not None else None

    @property
    def representable(self) -> Representable:
        """Shares of the finite nonzero values that each format holds exactly."""
        return Representable(**{name: getattr(self, name) / self.nonzero if self.nonzero else None for name in FORMATS})


@cache
def _tallied(dtype: str) -> BinGroups:
    """Group the bins of ``dtype`` by the statistics that count them."""
    table = bins(dtype)
    masks = [np.ones_like(table.zero), table.finite_nonzero, table.zero, table.nan, table.inf, table.overflow, table.underflow]
    subnormal = [table.subnormal, table.subnormal & ~table.exact["fp16_grid"]]
    return BinGroups.of([*masks, *subnormal, *(table.exact[name] for name in FORMATS)])


def share_counts(values: BitHistogram) -> tuple[list[int], list[int]]:
    """Return (tested, positive) for each of ``SHARES``: representability among finite nonzero values, the rest among all."""
    own = Statistics.of(values)
    tested = [own.nonzero] * len(FORMATS) + [own.values_read] * (len(SHARES) - len(FORMATS))
    return tested, [getattr(own, name.removeprefix("representable.")) for name in SHARES]


@dataclass(frozen=True, slots=True)
class TensorResult:
    """One tensor with its statistics, its own lineage, and the answers of `trainability.untouched` and `bare_codes`."""

    tensor: Tensor
    statistics: Statistics
    judgement: Judgement
    untouched: tuple[float, float] | None
    codes: str | None = None


UNREAD = Judgement("undecided", (), ())


def tensor_result(tensor: Tensor, counted: Counted) -> TensorResult:
    """Compute statistics and lineage of one tensor."""
    values = counted.histogram
    # Decoded values are float32 only as an intermediate: their bits prove nothing.
    judgement = UNREAD
    if tensor.stored is None:
        on = on_grids(counted.grids, counted.values, tensor.shape) if counted.grids else OnGrids()
        judgement = judge(values, on, counted.exact_rows, row_length(tensor))
    return TensorResult(tensor, Statistics.of(values, tensor.elements), judgement, untouched(tensor, values), _bare_codes(tensor, values))


def _bare_codes(tensor: Tensor, values: BitHistogram) -> str | None:
    """Return the format of which a tensor of 16 bits holds codes whose scale was never applied; None if it may hold weights."""
    if tensor.dtype not in ("BF16", "F16") or (values.high or 0.0) < LEAST_CODE:
        return None
    return bare_codes(values_of(values.index.astype(np.uint16), tensor.dtype), values.counts)


def extremes(results: Sequence[TensorResult], exact: bool) -> Extremes:
    """Compute extremes over tensors: magnitudes over all values, norms over tensors whose norm is not zero."""
    parts = [r.statistics for r in results if r.statistics.square is not None]
    norms = [norm for part in parts if (norm := part.norm)]
    whole = Statistics.together(parts)
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
        dtype=tensor.stored_dtype,
        shape=tensor.shape,
        role=tensor.role,
        layer=tensor.layer,
        parameters=tensor.elements,
        values_read=own.values_read,
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
        whole = Statistics.together([r.statistics for r in read])
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


def grid_rows(found: Sequence[tuple[Tensor, TensorGrid | None]]) -> tuple[Grid, ...]:
    """Sum the grids of tensors by format, group and stored dtype: proven ones first, then by parameters."""
    by_grid: dict[tuple[bool, str, str, bool, str], list[tuple[Tensor, TensorGrid]]] = {}
    for tensor, grid in found:
        if grid is not None:
            by_grid.setdefault((grid.proven, grid.format, grid.group, grid.columns, tensor.dtype), []).append((tensor, grid))
    rows = []
    for (proven, name, group, columns, stored), members in by_grid.items():
        parameters = sum(tensor.elements for tensor, _ in members)
        needed = sum(tensor.elements * grid.bits for tensor, grid in members)
        roles = {tensor.role for tensor, _ in members}
        rows.append(
            Grid(
                format=name,
                group=group,
                columns=columns,
                stored=stored,
                tensors=len(members),
                parameters=parameters,
                groups_tested=sum(grid.groups for _, grid in members),
                groups_on=sum(grid.groups - grid.exceptions for _, grid in members),
                by_chance=10 ** max(max(grid.log10_chance for _, grid in members), -300.0),
                roles=tuple(role for role in ROLES if role in roles),
                bits_needed=needed / parameters,
                redundant_bytes=sum(tensor.nbytes for tensor, _ in members) - int(needed / 8) if proven else 0,
                proven=proven,
            )
        )
    return tuple(sorted(rows, key=lambda row: (not row.proven, -row.parameters)))


def fp16_risk(counts: Counts, nonzero: int, undecoded: float) -> Fp16Risk:
    """Judge the counts among ``nonzero`` finite nonzero values (in quick mode those read).

    undecoded: share of the elements whose values are not decoded. The level is "overflow" if some weight becomes infinite, "broken" if some
    is NaN or infinite already, "caution" if enough become zero or lose digits as subnormals, "fits" otherwise; "unknown" if there is no
    weight to judge or most are not decoded. Weights that fit say nothing about activations.
    """
    found: dict[Risk, int | float] = {
        "undecoded": undecoded,
        "overflow": counts.fp16_overflow,
        "underflow": counts.fp16_underflow,
        "subnormal": counts.fp16_subnormal,
        "inexact": counts.fp16_inexact_subnormal,
        "nan": counts.nan,
        "infinite": counts.inf,
        "nothing": not nonzero,
    }
    level: RiskLevel = "fits"
    if not nonzero:
        level = "unknown"
    elif counts.fp16_overflow:
        level = "overflow"
    elif counts.nan or counts.inf:
        level = "broken"
    elif undecoded > 0.5:
        level = "unknown"
    elif counts.fp16_underflow > _UNDERFLOW_SHARE * nonzero or counts.fp16_inexact_subnormal > _INEXACT_SHARE * nonzero:
        level = "caution"
    return Fp16Risk(level=level, reasons=tuple(code for code, number in found.items() if number))
