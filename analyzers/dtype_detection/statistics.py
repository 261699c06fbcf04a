"""One tensor's statistics from its counts; several tensors' statistics together."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints import Tensor
from analyzers.dtype_detection.count import Counted
from analyzers.dtype_detection.lineage import Judgement, judge
from analyzers.dtype_detection.report import Counts, Evidence, Extremes, LayerRow, Representable, TensorLineage, TensorRow
from analyzers.numerics import BitHistogram, bins, sqrt_of
from analyzers.numerics.bins import classes

FORMATS = ("fp16", "bf16", "tf32", "fp8_e4m3", "fp8_e5m2")

# Shares that quick mode estimates with an interval, in the order of `share_counts`.
SHARES = (*(f"representable.{name}" for name in FORMATS), "zero", "fp16_underflow", "fp16_subnormal")


def share_counts(values: BitHistogram) -> tuple[list[int], list[int]]:
    """(tested, positive) for each of ``SHARES``: representability among finite nonzero values, the rest among all."""
    nonzero, *positive = (_share_masks(values.dtype) @ values.by_class()).tolist()
    return [nonzero] * len(FORMATS) + [values.values] * 3, positive


@cache
def _share_masks(dtype: str) -> NDArray[np.int64]:
    """(1 + shares, classes): 1 for the classes that are finite and not zero, then for those that are positive of each share."""
    table = bins(dtype)
    masks = [table.finite_nonzero, *(table.exact[name] for name in FORMATS), table.zero, table.underflow, table.subnormal]
    return np.stack(masks)[:, classes(dtype).example].astype(np.int64)


@cache
def _row_masks(dtype: str) -> NDArray[np.int64]:
    """(7 + formats, classes): 1 for the classes of all values, then for those that each count of `statistics` is of."""
    table = bins(dtype)
    masks = [table.finite_nonzero, table.zero, table.nan, table.inf, table.underflow, table.subnormal]
    chosen = np.stack([np.ones_like(table.zero), *masks, *(table.exact[name] for name in FORMATS)])
    return chosen[:, classes(dtype).example].astype(np.int64)


@dataclass(frozen=True, slots=True)
class Statistics:
    """The counts behind a row of the report, which can be summed over tensors. Extremes are None if nothing was read."""

    values_read: int
    nonzero: int
    exact: tuple[int, ...]
    counts: Counts
    abs_min: float | None
    abs_min_nonzero: float | None
    abs_max: float | None
    square: Fraction | None

    @property
    def norm(self) -> float | None:
        """Frobenius norm; None where nothing finite was read, or it is beyond float64."""
        return finite(sqrt_of(self.square)) if self.square is not None else None

    @property
    def representable(self) -> Representable:
        """Shares of the finite nonzero values."""
        shares = [k / self.nonzero if self.nonzero else None for k in self.exact]
        return Representable(**dict(zip(FORMATS, shares, strict=True)))


def finite(x: float) -> float | None:
    """``x``, or None for what JSON cannot hold."""
    return x if math.isfinite(x) else None


def statistics(values: BitHistogram, elements: int) -> Statistics:
    """Statistics of a tensor of ``elements``, of which ``values`` were read; the sum of squares is scaled up to all."""
    read, nonzero, zero, nan, inf, underflow, subnormal, *exact = (_row_masks(values.dtype) @ values.by_class()).tolist()
    abs_min, abs_min_nonzero, abs_max = values.extremes()
    any_finite = abs_max is not None
    return Statistics(
        values_read=read,
        nonzero=nonzero,
        exact=tuple(exact),
        counts=Counts(zero=zero, nan=nan, inf=inf, fp16_overflow=values.overflow(), fp16_underflow=underflow, fp16_subnormal=subnormal),
        abs_min=abs_min,
        abs_min_nonzero=abs_min_nonzero,
        abs_max=abs_max,
        square=values.sum_of_squares() * Fraction(elements, read) if any_finite and read else None,
    )


def together(parts: Sequence[Statistics]) -> Statistics:
    """Several tensors as one."""
    squares = [p.square for p in parts if p.square is not None]
    names = tuple(Counts.model_fields)
    return Statistics(
        values_read=sum(p.values_read for p in parts),
        nonzero=sum(p.nonzero for p in parts),
        exact=tuple(sum(p.exact[i] for p in parts) for i in range(len(FORMATS))),
        counts=Counts(**{name: sum(getattr(p.counts, name) for p in parts) for name in names}),
        abs_min=min((p.abs_min for p in parts if p.abs_min is not None), default=None),
        abs_min_nonzero=min((p.abs_min_nonzero for p in parts if p.abs_min_nonzero is not None), default=None),
        abs_max=max((p.abs_max for p in parts if p.abs_max is not None), default=None),
        square=sum(squares, Fraction(0)) if squares else None,
    )


@dataclass(frozen=True, slots=True)
class TensorResult:
    """One tensor with its statistics and its own lineage."""

    tensor: Tensor
    statistics: Statistics
    judgement: Judgement


EMPTY = Statistics(
    0, 0, (0,) * len(FORMATS), Counts(zero=0, nan=0, inf=0, fp16_overflow=0, fp16_underflow=0, fp16_subnormal=0), *[None] * 4
)
UNREAD = Judgement("undecided", (), ())


def tensor_result(tensor: Tensor, counted: Counted) -> TensorResult:
    """Statistics and lineage of one tensor."""
    values = counted.histogram
    # Values that scales make are float32 only because something had to hold them: nothing is asked of their bits.
    judgement = UNREAD if tensor.scale is not None else judge(values, counted.runs, counted.exact_rows)
    return TensorResult(tensor, statistics(values, tensor.elements), judgement)


def extremes(results: Sequence[TensorResult], exact: bool) -> Extremes:
    """Extremes over tensors: magnitudes over all values, norms over tensors whose norm is not zero."""
    whole = together([r.statistics for r in results]) if results else EMPTY
    norms = [norm for r in results if (norm := r.statistics.norm)]
    return Extremes(
        abs_min=whole.abs_min,
        abs_min_nonzero=whole.abs_min_nonzero,
        abs_max=whole.abs_max,
        norm_min=min(norms, default=None),
        norm_max=None if any(r.statistics.square and r.statistics.norm is None for r in results) else max(norms, default=None),
        exact=exact,
    )


def tensor_row(result: TensorResult) -> TensorRow:
    """One tensor's row of the report."""
    tensor = result.tensor
    judged = result.judgement
    lineage = TensorLineage(verdict=judged.verdict, passed_through=judged.passed_through, evidence=judged.evidence)
    described = {name: getattr(tensor, name) for name in ("name", "dtype", "shape", "role", "layer")}
    return _row(result.statistics, lineage, **described, tensors=1, parameters=tensor.elements, fossil_rows=judged.fossil_rows)


def aggregate_rows(results: Sequence[TensorResult]) -> list[TensorRow]:
    """One row per layer, role and dtype, for checkpoints of very many tensors."""
    groups: dict[tuple[int | None, str, str], list[TensorResult]] = {}
    for result in results:
        groups.setdefault((result.tensor.layer, result.tensor.role, result.tensor.dtype), []).append(result)
    rows = []
    for (layer, role, dtype), group in groups.items():
        verdicts = {r.judgement.verdict for r in group if r.judgement.verdict != "undecided"}
        verdict = "undecided" if not verdicts else next(iter(verdicts)) if len(verdicts) == 1 else "mixed"
        ancestors = tuple(dict.fromkeys(name for r in group for name in r.judgement.passed_through))
        lineage = TensorLineage(verdict=verdict, passed_through=ancestors, evidence=_sum_evidence(group))
        name = f"{'not in a layer' if layer is None else f'layer {layer}'}: {role}"
        read = [r for r in group if r.statistics.values_read]
        parameters = sum(r.tensor.elements for r in group)
        whole = together([r.statistics for r in read])
        covered = sum(r.tensor.elements for r in read)
        if whole.square is not None:  # scaled from the tensors read to all of the group
            whole = replace(whole, square=whole.square * Fraction(parameters, covered))
        described = {"name": name, "dtype": dtype, "shape": (), "tensors": len(group), "parameters": parameters, "role": role}
        rows.append(_row(whole, lineage, **described, layer=layer, fossil_rows=sum(r.judgement.fossil_rows for r in group)))
    return rows


def _sum_evidence(group: Sequence[TensorResult]) -> tuple[Evidence, ...]:
    """The tensors' evidence, test by test; ``distinct`` is that of the best tensor, and all must be proven."""
    found: dict[str, list[Evidence]] = {}
    for result in group:
        for one in result.judgement.evidence:
            found.setdefault(one.test, []).append(one)
    summed = []
    for each in found.values():
        tested, exceptions = sum(e.tested for e in each), sum(e.exceptions for e in each)
        best = max(each, key=lambda e: e.distinct)
        conclusions = {e.conclusion for e in each}
        update = {
            "tested": tested,
            "exceptions": exceptions,
            "share": (tested - exceptions) / tested if tested else None,
            "proven": all(e.proven for e in each),
            "conclusion": best.conclusion if len(conclusions) == 1 else f"differs between {len(each):,} tensors",
        }
        summed.append(best.model_copy(update=update))
    return tuple(summed)


def _row(statistics: Statistics, lineage: TensorLineage, **described: Any) -> TensorRow:
    """described: the fields of the row that say what it is of."""
    named = ("values_read", "abs_min", "abs_min_nonzero", "abs_max", "norm", "representable")
    values = {name: getattr(statistics, name) for name in named}
    return TensorRow(**described, **values, lineage=lineage, **statistics.counts.model_dump())


def layer_rows(results: Sequence[TensorResult]) -> list[LayerRow]:
    """One row per layer and role, in layer order; tensors outside the layers come last."""
    groups: dict[tuple[int | None, str], list[TensorResult]] = {}
    for result in results:
        groups.setdefault((result.tensor.layer, result.tensor.role), []).append(result)
    rows = []
    for (layer, role), group in sorted(groups.items(), key=lambda item: (item[0][0] is None, item[0][0] or 0, item[0][1])):
        read = [r for r in group if r.statistics.square is not None]
        whole = together([r.statistics for r in read])
        parameters = sum(r.tensor.elements for r in read)
        rows.append(
            LayerRow(
                layer=layer,
                role=role,
                tensors=len(group),
                parameters=sum(r.tensor.elements for r in group),
                abs_min_nonzero=whole.abs_min_nonzero,
                abs_max=whole.abs_max,
                rms=finite(sqrt_of(whole.square / parameters)) if whole.square is not None and parameters else None,
            )
        )
    return rows
