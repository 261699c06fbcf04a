"""From sums over units to rates, with the range that rounding leaves open and 95 % intervals by the delete-one jackknife.

Pairs of samples are not independent, samples are: each is left out in turn, with all of its pairs.
Axes: S samples, P pairs of them (`sample_pairs`). gram: (S, S) float64, symmetric: the Gram matrix of a layer, or of the model, whose units
together are one gradient per sample.
"""

import math

import numpy as np

from analyzers.gradient_conflict.gradient_scaling import LARGEST
from analyzers.gradient_conflict.sample_pairs import SMALLEST_SQUARE, FloatArray, PairSums, Thresholds
from analyzers.gradient_conflict.summaries import Rates, SampleDominance, Undecided, Whole
from analyzers.numerics import student_t
from analyzers.records import Interval

# As with the units that these are sums of.
_SMALLEST_SHARE = SMALLEST_SQUARE / 4.0**LARGEST
FEWEST = 4  # samples; with 3 each rate without one of them would be that of a single pair


def pair_share(found: FloatArray, counted: FloatArray) -> float | None:
    """Sum of ``found`` divided by that of ``counted``, both (P,); None without pairs."""
    return float(found.sum() / counted.sum()) if counted.sum() > 0 else None


def share_interval(found: FloatArray, counted: FloatArray, low: float = 0.0, high: float = 1.0) -> Interval | None:
    """The interval of `pair_share`, within [low, high]; None with fewer than 4 samples, or if all pairs share a sample."""
    estimate, without = pair_share(found, counted), _without_each(found, counted)
    if estimate is None or without is None:
        return None
    half = half_width(without)
    return Interval(estimate=estimate, low=max(low, estimate - half), high=min(high, estimate + half))


def difference_interval(first: tuple[FloatArray, FloatArray], second: tuple[FloatArray, FloatArray]) -> Interval | None:
    """The interval of the first `pair_share` minus the second, on the same samples: each is left out of both at once."""
    estimates = pair_share(*first), pair_share(*second)
    without = _without_each(*first), _without_each(*second)
    if estimates[0] is None or estimates[1] is None or without[0] is None or without[1] is None:
        return None
    estimate, half = estimates[0] - estimates[1], half_width(without[0] - without[1])
    return Interval(estimate=estimate, low=max(-1.0, estimate - half), high=min(1.0, estimate + half))


def half_width(without: FloatArray) -> float:
    """(S,) estimates, each without one sample: Student's t times sqrt((S-1)/S sum (estimate - mean)^2)."""
    number = len(without)
    variance = (number - 1) / number * np.square(without - without.mean()).sum()
    return float(student_t(number - 1) * np.sqrt(variance))


def _without_each(found: FloatArray, counted: FloatArray) -> FloatArray | None:
    """(S,): `pair_share` without one sample; None with fewer than 4 of them, or where no pair would be left."""
    of_each = _of_each_sample(counted)
    left = counted.sum() - of_each
    if len(of_each) < FEWEST or not (left > 0).all():
        return None
    return np.asarray((found.sum() - _of_each_sample(found)) / left)


def _of_each_sample(values: FloatArray) -> FloatArray:
    """(P,) -> (S,): the sum over the pairs that a sample is in."""
    samples = (1 + math.isqrt(1 + 8 * len(values))) // 2
    first, second = np.triu_indices(samples, 1)
    return np.asarray(np.bincount(first, values, samples) + np.bincount(second, values, samples))


def rates(sums: PairSums) -> Rates:
    """Over all units and pairs of ``sums``."""
    return Rates(
        pairs=int(sums.valid.sum()),
        conflict_rate=pair_share(sums.below, sums.valid),
        interval=share_interval(sums.below, sums.valid),
        undecided=undecided(sums.below_low, sums.below_high, sums.valid),
        conflict_rate_historic=_historic_rate(sums),
        magnitude_similarity=pair_share(sums.similarity, sums.valid),
        magnitude_interval=share_interval(sums.similarity, sums.valid),
        magnitude_similarity_historic=_historic_similarity(sums),
        mean_cosine=clipped(pair_share(sums.cosine, sums.valid)),
    )


def undecided(low: FloatArray, high: FloatArray, valid: FloatArray) -> Undecided:
    """Shares of ``valid``, all three (P,): of pairs below gamma - tau, and below gamma + tau."""
    below, above = pair_share(low, valid), pair_share(high, valid)
    return Undecided(low=below, high=above, share=None if below is None or above is None else above - below)


def clipped(cosine: float | None) -> float | None:
    """Within [-1, 1], which rounding may leave."""
    return None if cosine is None else min(1.0, max(-1.0, cosine))


def _historic_rate(sums: PairSums) -> float | None:
    """Of the ordered pairs whose gradients are both above 0, each sample with itself included: the share with cos < 0."""
    total = 2 * sums.valid_of_all.sum() + len(sums.gram) * sums.units - sums.zeros
    return float(2 * sums.historic.sum() / total) if total else None


def _historic_similarity(sums: PairSums) -> float | None:
    """Mean over all S x S ordered pairs; as published it is not a number where one sample has no gradient: 0/0 of it with itself."""
    samples = len(sums.gram)
    if not sums.units or sums.zeros:
        return None
    return float((2 * sums.similarity_of_all.sum() + samples * sums.units) / (sums.units * samples**2))


def whole(gram: FloatArray, thresholds: Thresholds) -> Whole:
    """Rates between samples, and how their gradients add up."""
    first, second = np.triu_indices(len(gram), 1)
    values, squares = cosines(gram)[first, second], np.diag(gram)
    counted = np.isfinite(values).astype(np.float64)
    ratio = np.sqrt(np.divide(squares[first], squares[second], out=np.zeros_like(values), where=counted > 0))
    below = _share_below(values, thresholds.gamma)
    top, effective = concentration(squares)
    return Whole(
        pairs=int(counted.sum()),
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


def rounded(matrix: FloatArray, digits: int) -> tuple[tuple[float | None, ...], ...]:
    """To so many digits after the point; None for NaN."""
    return tuple(tuple(None if math.isnan(value) else value for value in row) for row in matrix.round(digits).tolist())


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
