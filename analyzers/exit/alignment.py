"""Alignment of a signal with the exact gradient by token: cosines, norms, and the energy along the hidden state.

s is the signal, e the exact gradient, u the hidden state, (n, d) each; all statistics follow from five numbers per token.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from analyzers.exit.measured_points import Point
from analyzers.exit.measurements import (
    HISTOGRAM_BINS,
    LOSS_BINS,
    Alignment,
    CostRow,
    Distribution,
    Exact,
    LayerRow,
    LossBin,
    Method,
    OverSeeds,
    SweepRow,
)
from analyzers.exit.signals import facts_of

FloatArray = NDArray[np.float64]
_DOT, _SIGNAL, _EXACT, _SIGNAL_ALONG, _EXACT_ALONG = range(5)


def products(signal: Tensor, exact: Tensor, hidden: Tensor) -> FloatArray:
    """Compute s.e, |s|^2, |e|^2, (s.u)^2/|u|^2 and (e.u)^2/|u|^2 of each token, (n, 5) float64; the last two are 0 for u = 0."""
    s, e, u = signal.double(), exact.double(), hidden.double()
    unit = u / u.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    rows = [(s * e).sum(-1), (s * s).sum(-1), (e * e).sum(-1), (s * unit).sum(-1) ** 2, (e * unit).sum(-1) ** 2]
    return np.asarray(torch.stack(rows, -1).cpu().numpy())


def cosines(rows: FloatArray) -> FloatArray:
    """Compute the cosine of each token, (n,): NaN if the exact gradient is 0, and 0 if only the signal is."""
    norms = np.sqrt(rows[:, _SIGNAL]) * np.sqrt(rows[:, _EXACT])
    with np.errstate(divide="ignore", invalid="ignore"):
        cosine = np.clip(rows[:, _DOT] / norms, -1.0, 1.0)
    return np.where(rows[:, _EXACT] == 0, np.nan, np.where(rows[:, _SIGNAL] == 0, 0.0, cosine))


def alignment(rows: FloatArray) -> Alignment:
    """Compute the alignment over all tokens from their `products`, (n, 5)."""
    values = cosines(rows)
    values = values[~np.isnan(values)]
    dot, signal, exact, along, _ = rows.sum(0)
    return Alignment(
        tokens=len(values),
        zero=int(((rows[:, _SIGNAL] == 0) & (rows[:, _EXACT] > 0)).sum()),
        cosine=distribution(values),
        histogram=tuple(np.histogram(values, HISTOGRAM_BINS, (-1.0, 1.0))[0].tolist()),
        total_cosine=_ratio(dot, np.sqrt(signal) * np.sqrt(exact)),
        norm_ratio=_ratio(np.sqrt(signal), np.sqrt(exact)),
        best_scale=_ratio(dot, signal),
        parallel_energy=_ratio(along, signal),
    )


def exact_parallel_energy(rows: FloatArray) -> float | None:
    """Return the share of the exact gradient's energy along u, over all tokens together."""
    return _ratio(float(rows[:, _EXACT_ALONG].sum()), float(rows[:, _EXACT].sum()))


def loss_bins(rows: FloatArray, losses: FloatArray) -> tuple[LossBin, ...]:
    """Sort tokens by loss into `LOSS_BINS` bins of equal size; fewer bins if there are fewer tokens."""
    order = np.argsort(losses, kind="stable")
    return tuple(_loss_bin(rows[part], losses[part], rows) for part in np.array_split(order, min(LOSS_BINS, len(order))))


def _loss_bin(rows: FloatArray, losses: FloatArray, all_rows: FloatArray) -> LossBin:
    of_bin = alignment(rows)
    return LossBin(
        low=float(losses.min()),
        high=float(losses.max()),
        tokens=len(rows),
        cosine=of_bin.cosine,
        total_cosine=of_bin.total_cosine,
        norm_ratio=of_bin.norm_ratio,
        exact_energy=_ratio(float(rows[:, _EXACT].sum()), float(all_rows[:, _EXACT].sum())),
    )


def distribution(values: FloatArray) -> Distribution | None:
    """Compute the mean and percentiles; None without values."""
    if not len(values):
        return None
    p10, p50, p90 = np.percentile(values, (10, 50, 90))
    return Distribution(mean=float(values.mean()), p10=float(p10), p50=float(p50), p90=float(p90))


def _ratio(value: float, by: float) -> float | None:
    """Divide; None if the quotient is not finite, which JSON cannot represent."""
    quotient = float(value / by) if by else np.nan
    return quotient if np.isfinite(quotient) else None


@dataclass(slots=True)
class Measured:
    """The `products` of each point, in pieces of the tokens: at the head and, if requested, before the norm. losses: in nats."""

    losses: list[FloatArray] = field(default_factory=list)
    at_head: dict[Point, list[FloatArray]] = field(default_factory=dict)
    before: dict[Point, list[FloatArray]] = field(default_factory=dict)

    def rows(self, point: Point) -> FloatArray:
        """Return the products at the head, (N, 5)."""
        return np.concatenate(self.at_head[point])

    def rows_before(self, point: Point) -> FloatArray:
        """Return the products before the norm, (N, 5)."""
        return np.concatenate(self.before[point])

    @property
    def loss(self) -> FloatArray:
        """The losses of all tokens, (N,), in nats."""
        return np.concatenate(self.losses)


def exact_row(point: Point, measured: Measured) -> Exact:
    """Summarize the exact gradient, which the products of every point contain."""
    rows = measured.rows(point)
    return Exact(
        loss=float(measured.loss.mean()),
        norm=float(rows[:, 2].mean() ** 0.5),
        parallel_energy=exact_parallel_energy(rows),
        parallel_energy_before_norm=exact_parallel_energy(measured.rows_before(point)),
        zero=int((rows[:, 2] == 0).sum()),
    )


def method_rows(
    points: Iterable[Point], measured: Measured, over_seeds: Mapping[str, OverSeeds], costs: Iterable[CostRow]
) -> dict[str, Method]:
    """Build the report's methods by name."""
    chunked = {row.method: row for row in costs if row.form == "chunked"}
    methods = {}
    for point in points:
        rows, cost = measured.rows(point), chunked.get(point.method)
        methods[point.method] = Method(
            **dict(alignment(rows)),
            settings=point.used(),
            before_norm=alignment(measured.rows_before(point)),
            loss_bins=loss_bins(rows, measured.loss),
            over_seeds=over_seeds.get(point.method),
            seconds=cost.seconds if cost else None,
            peak_bytes=cost.peak_bytes if cost else None,
        )
    return methods


def layer_rows(layer: int, points: Iterable[Point], measured: Measured) -> list[LayerRow]:
    """Build one row of a layer for each method."""
    loss = float(measured.loss.mean())
    rows = []
    for point in points:
        at_head = alignment(measured.rows(point))
        rows.append(
            LayerRow(
                layer=layer,
                method=point.method,
                loss=loss,
                parallel_energy=at_head.parallel_energy,
                **_closeness(at_head),
                exact_parallel_energy=exact_parallel_energy(measured.rows(point)),
                before_norm_cosine=alignment(measured.rows_before(point)).cosine,
            )
        )
    return rows


def sweep_rows(swept: Iterable[Point], measured: Measured) -> tuple[SweepRow, ...]:
    """Build one row for each point, in order."""
    return tuple(
        SweepRow(
            method=point.method,
            parameter=point.parameter or "seed",
            value=point.value,
            seed=point.settings.seed,
            ceiling=facts_of(point.method).ceiling,
            null=point.is_null,
            **_closeness(alignment(measured.rows(point))),
        )
        for point in swept
    )


def _closeness(alignment: Alignment) -> dict[str, Any]:
    """Return the fields that the rows of layers and sweeps share."""
    return {name: getattr(alignment, name) for name in ("cosine", "total_cosine", "norm_ratio", "best_scale")}


def spreads(swept: Sequence[Point], measured: Measured) -> dict[str, OverSeeds]:
    """Summarize the points of parameter "seed" by method. Only seeds are independent, because tokens share the codes of a seed."""
    means: dict[str, dict[int, float]] = {}
    for point in swept:
        if point.parameter == "seed" and (cosine := alignment(measured.rows(point)).cosine) is not None:
            means.setdefault(point.method, {})[point.settings.seed] = cosine.mean
    result = {}
    for method, by_seed in means.items():
        values = tuple(by_seed.values())
        error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
        result[method] = OverSeeds(mean=fmean(values), standard_error=error, seeds=tuple(by_seed), values=values)
    return result
