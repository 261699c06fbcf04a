"""Alignment of a signal with the exact gradient, token by token: cosines, norms, and the energy along the hidden state.

s is the signal, e the exact gradient, u the hidden state (n, d); everything follows from five numbers per token.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from analyzers.exit_feedback.report import HISTOGRAM_BINS, LOSS_BINS, Alignment, Distribution, LossBin

FloatArray = NDArray[np.float64]
PRODUCTS = 5
_DOT, _SIGNAL, _EXACT, _SIGNAL_ALONG, _EXACT_ALONG = range(PRODUCTS)


def products(signal: Tensor, exact: Tensor, hidden: Tensor) -> FloatArray:
    """(n, 5) float64: s.e, |s|^2, |e|^2, (s.u)^2/|u|^2 and (e.u)^2/|u|^2 of each token; the last two are 0 for u = 0."""
    s, e, u = signal.double(), exact.double(), hidden.double()
    unit = u / u.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    rows = [(s * e).sum(-1), (s * s).sum(-1), (e * e).sum(-1), (s * unit).sum(-1) ** 2, (e * unit).sum(-1) ** 2]
    return np.asarray(torch.stack(rows, -1).cpu().numpy())


def cosines(rows: FloatArray) -> FloatArray:
    """(n,): of each token; NaN where the exact gradient is 0, 0 where only the signal is."""
    norms = np.sqrt(rows[:, _SIGNAL]) * np.sqrt(rows[:, _EXACT])
    with np.errstate(divide="ignore", invalid="ignore"):
        cosine = np.clip(rows[:, _DOT] / norms, -1.0, 1.0)
    return np.where(rows[:, _EXACT] == 0, np.nan, np.where(rows[:, _SIGNAL] == 0, 0.0, cosine))


def alignment(rows: FloatArray) -> Alignment:
    """All tokens together, from their (n, 5) `products`."""
    counted = cosines(rows)
    counted = counted[~np.isnan(counted)]
    dot, signal, exact, along, _ = rows.sum(0)
    edges = np.linspace(-1.0, 1.0, HISTOGRAM_BINS + 1)
    return Alignment(
        tokens=len(counted),
        zero=int(((rows[:, _SIGNAL] == 0) & (rows[:, _EXACT] > 0)).sum()),
        cosine=distribution(counted),
        histogram=tuple(np.histogram(counted, edges)[0].tolist()),
        total_cosine=_ratio(dot, np.sqrt(signal) * np.sqrt(exact)),
        norm_ratio=_ratio(np.sqrt(signal), np.sqrt(exact)),
        best_scale=_ratio(dot, signal),
        parallel_energy=_ratio(along, signal),
    )


def exact_parallel_energy(rows: FloatArray) -> float | None:
    """The share of the exact gradient's energy along u, all tokens together."""
    return _ratio(float(rows[:, _EXACT_ALONG].sum()), float(rows[:, _EXACT].sum()))


def loss_bins(rows: FloatArray, losses: FloatArray) -> tuple[LossBin, ...]:
    """Tokens sorted by loss in `LOSS_BINS` bins of equal size; fewer bins where there are fewer tokens."""
    order = np.argsort(losses, kind="stable")
    bins = []
    for part in np.array_split(order, min(LOSS_BINS, len(order))):
        of_bin = alignment(rows[part])
        bins.append(
            LossBin(
                low=float(losses[part].min()),
                high=float(losses[part].max()),
                tokens=len(part),
                cosine=of_bin.cosine,
                total_cosine=of_bin.total_cosine,
                norm_ratio=of_bin.norm_ratio,
                exact_energy=_ratio(float(rows[part, _EXACT].sum()), float(rows[:, _EXACT].sum())),
            )
        )
    return tuple(bins)


def distribution(values: FloatArray) -> Distribution | None:
    """Mean and percentiles; None for no values."""
    if not len(values):
        return None
    p10, p50, p90 = np.percentile(values, (10, 50, 90))
    return Distribution(mean=float(values.mean()), p10=float(p10), p50=float(p50), p90=float(p90))


def joined(parts: Sequence[FloatArray]) -> FloatArray:
    """(N, 5): the rows of all pieces."""
    return np.concatenate(parts) if parts else np.empty((0, PRODUCTS))


def _ratio(value: float, by: float) -> float | None:
    """None for a division by 0 and a quotient that is not finite, which JSON cannot hold."""
    quotient = float(value / by) if by else np.nan
    return quotient if np.isfinite(quotient) else None
