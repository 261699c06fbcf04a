"""Alignment of a signal with the exact gradient by token: cosines, norms, and the energy along the hidden state.

s is the signal, e the exact gradient, u the hidden state, (n, d) each; all statistics follow from five numbers per token.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from analyzers.exit.measured_points import Point
from analyzers.exit.report import Alignment, CostRow, Distribution, Exact, LossBin, Method, OverSeeds, SweepRow
from analyzers.exit.signals import facts_of

FloatArray = NDArray[np.float64]
LOSS_BINS = 5
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
        cosine=_distribution(values),
        total_cosine=_ratio(dot, np.sqrt(signal) * np.sqrt(exact)),
        norm_ratio=_ratio(np.sqrt(signal), np.sqrt(exact)),
        best_scale=_ratio(dot, signal),
        parallel_energy=_ratio(along, signal),
    )


def loss_bins(rows: FloatArray, losses: FloatArray) -> tuple[LossBin, ...]:
    """Sort tokens by loss into `LOSS_BINS` bins of equal size; fewer bins if there are fewer tokens."""
    order, energy = np.argsort(losses, kind="stable"), rows[:, _EXACT].sum()
    return tuple(
        LossBin(
            low=float(losses[part].min()),
            high=float(losses[part].max()),
            exact_energy=_ratio(rows[part, _EXACT].sum(), energy),
            **dict(alignment(rows[part])),
        )
        for part in np.array_split(order, min(LOSS_BINS, len(order)))
    )


def _distribution(values: FloatArray) -> Distribution | None:
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


def exact_row(point: Point, measured: Measured) -> Exact:
    """Summarize the exact gradient, which the products of every point contain."""
    rows, before = np.concatenate(measured.at_head[point]), np.concatenate(measured.before[point])
    return Exact(
        loss=float(np.concatenate(measured.losses).mean()),
        norm=float(rows[:, _EXACT].mean() ** 0.5),
        parallel_energy=_ratio(rows[:, _EXACT_ALONG].sum(), rows[:, _EXACT].sum()),
        parallel_energy_before_norm=_ratio(before[:, _EXACT_ALONG].sum(), before[:, _EXACT].sum()),
        zero=int((rows[:, _EXACT] == 0).sum()),
    )


def method_rows(
    points: Iterable[Point], measured: Measured, over_seeds: Mapping[str, OverSeeds], costs: Iterable[CostRow]
) -> dict[str, Method]:
    """Build the report's methods by name."""
    chunked, losses = {row.method: row for row in costs if row.form == "chunked"}, np.concatenate(measured.losses)
    methods = {}
    for point in points:
        rows, cost = np.concatenate(measured.at_head[point]), chunked[point.method]
        methods[point.method] = Method(
            **dict(alignment(rows)),
            settings=point.used(),
            before_norm=alignment(np.concatenate(measured.before[point])),
            loss_bins=loss_bins(rows, losses),
            over_seeds=over_seeds.get(point.method),
            seconds=cost.seconds,
            peak_bytes=cost.peak_bytes,
        )
    return methods


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
            **dict(alignment(np.concatenate(measured.at_head[point]))),
        )
        for point in swept
    )


def spreads(rows: Sequence[SweepRow]) -> dict[str, OverSeeds]:
    """Summarize the rows of parameter "seed" by method. Only seeds are independent, because tokens share the codes of a seed."""
    means: dict[str, list[float]] = {}
    for row in rows:
        if row.parameter == "seed" and row.cosine is not None:
            means.setdefault(row.method, []).append(row.cosine.mean)
    return {
        method: OverSeeds(
            mean=fmean(values), standard_error=stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None, values=tuple(values)
        )
        for method, values in means.items()
    }
