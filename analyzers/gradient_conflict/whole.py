"""All units of a layer, or of the model, as one gradient per sample: conflict, noise scale and dominance from its Gram matrix.

Axes: S samples. gram: (S, S) float64, symmetric.
"""

import numpy as np

from analyzers.gradient_conflict.pairs import SMALLEST_SQUARE, Thresholds
from analyzers.gradient_conflict.rates import FloatArray, clipped, pair_share, share_interval, undecided
from analyzers.gradient_conflict.scaling import LARGEST
from analyzers.gradient_conflict.summaries import SampleDominance, Whole

# As with the units that these are sums of.
_SMALLEST_SHARE = SMALLEST_SQUARE / 4.0**LARGEST


def whole(gram: FloatArray, thresholds: Thresholds) -> Whole:
    """Rates between samples, and how their gradients add up."""
    values, counted = cosines(gram), _valid(gram).astype(np.float64)
    ratio = np.sqrt(np.divide(np.diag(gram)[:, None], np.diag(gram), out=np.zeros_like(gram), where=counted > 0))
    below = _share_below(values, thresholds.gamma)
    top, effective = concentration(np.diag(gram))
    return Whole(
        pairs=int(np.tril(counted, -1).sum()),
        conflict_rate=pair_share(below, counted),
        interval=share_interval(below, counted),
        undecided=undecided(_share_below(values, thresholds.low), _share_below(values, thresholds.high), counted),
        magnitude_similarity=pair_share(2 * ratio / (1 + ratio**2), counted),
        mean_cosine=clipped(pair_share(np.nan_to_num(values), counted)),
        noise_scale=noise_scale(gram),
        top_share=top,
        effective_samples=effective,
        diversity=_quotient(np.trace(gram), gram.sum()),
    )


def cosines(gram: FloatArray) -> FloatArray:
    """(S, S), NaN where a sample has no gradient, 1 on the diagonal."""
    norms = np.sqrt(np.diag(gram))
    values = np.divide(gram, norms[:, None] * norms, out=np.full_like(gram, np.nan), where=_valid(gram))
    values = np.clip(values, -1.0, 1.0)
    values[np.diag(_valid(gram)), np.diag(_valid(gram))] = 1.0
    return np.asarray(values)


def noise_scale(gram: FloatArray) -> float | None:
    """tr(covariance) / |mean|^2 of the S gradients, both unbiased: McCandlish et al., arXiv 1812.06162, B_simple. None if the estimate
    of |mean|^2 is not above 0: no signal stands out from the noise.
    """
    number = len(gram)
    signal = (gram.sum() - np.trace(gram)) / (number * (number - 1))
    noise = (np.trace(gram) - gram.sum() / number) / (number - 1)
    return float(noise / signal) if signal > 0 and np.isfinite(noise / signal) else None


def concentration(squares: FloatArray) -> tuple[float | None, float | None]:
    """The largest share of the sum of ``squares`` (S,), and the effective number: (sum)^2 / sum of squares."""
    total = squares.sum()
    if not total > 0:
        return None, None
    shares = squares / total
    return float(shares.max()), float(1 / np.square(shares).sum())


def dominance(gram: FloatArray, leading: FloatArray) -> tuple[SampleDominance, ...]:
    """Sample by sample. leading: (S,) share of the units in which its norm is the largest, NaN without units."""
    squares, total = np.diag(gram), gram.sum()
    rows = []
    for sample, square in enumerate(squares):
        along = gram[sample].sum()  # of g with the sum of all
        rest = max(total - 2 * along + square, 0.0)  # of the squared sum of the others
        rows.append(
            SampleDominance(
                sample=sample,
                norm=float(np.sqrt(square)),
                share=_quotient(square, squares.sum()),
                leave_one_out_cosine=clipped(_quotient(total - along, np.sqrt(max(total, 0.0)) * np.sqrt(rest))),
                cosine_to_rest=clipped(_quotient(along - square, np.sqrt(square) * np.sqrt(rest))),
                neurons_led=float(leading[sample]) if np.isfinite(leading[sample]) else None,
            )
        )
    return tuple(rows)


def _valid(gram: FloatArray) -> "np.ndarray[tuple[int, int], np.dtype[np.bool_]]":
    present = np.diag(gram) > _SMALLEST_SHARE * float(np.diag(gram).max())
    return present[:, None] & present


def _share_below(values: FloatArray, threshold: float) -> FloatArray:
    with np.errstate(invalid="ignore"):
        return np.asarray(values < threshold, dtype=np.float64)


def _quotient(above: float, below: float) -> float | None:
    return float(above / below) if below > 0 and np.isfinite(above / below) else None
