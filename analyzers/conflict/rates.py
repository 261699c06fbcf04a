"""Rates from sums over units, with the range that rounding leaves open and 95 % intervals by the delete-one jackknife.

Samples are independent, pairs of samples are not: the jackknife leaves out one sample at a time, with all of its pairs.
Axes: S samples, P pairs of them (`sample_pairs`). gram: (S, S) float64, symmetric: the Gram matrix of a layer or of the model, in which
the gradients of all units are concatenated to one gradient per sample.
"""

import math

import numpy as np
import torch

from analyzers.conflict.grams import LARGEST
from analyzers.conflict.rows import Dominance, Rates, SampleDominance, Undecided, Whole
from analyzers.conflict.sample_pairs import SMALLEST_SQUARE, FloatArray, Pairs, PairSums, Thresholds, packed
from analyzers.core.records import Interval
from analyzers.numerics import student_t

# The threshold of single units, `SMALLEST_SQUARE`, relative to the largest squared norm.
_SMALLEST_SHARE = SMALLEST_SQUARE / 4.0**LARGEST
_ROUNDING = 1e-6  # of a sum of float32 products, relative to its largest term
FEWEST = 4  # Samples for an interval: with 3, each delete-one rate would rest on a single pair.


def pair_share(part: FloatArray, counted: FloatArray) -> float | None:
    """Return sum(``part``) / sum(``counted``), both (P,); None without pairs."""
    return float(part.sum() / counted.sum()) if counted.sum() > 0 else None


def share_interval(part: FloatArray, counted: FloatArray) -> Interval | None:
    """Return the interval of `pair_share`, clipped to [0, 1]; None with fewer than 4 samples, or if all pairs share a sample."""
    estimate, without = pair_share(part, counted), _without_each(part, counted)
    if estimate is None or without is None:
        return None
    half = half_width(without)
    return Interval(estimate=estimate, low=max(0.0, estimate - half), high=min(1.0, estimate + half))


def difference_interval(first: tuple[FloatArray, FloatArray], second: tuple[FloatArray, FloatArray]) -> Interval | None:
    """Return the interval of the first `pair_share` minus the second, leaving each sample out of both at once."""
    estimates = pair_share(*first), pair_share(*second)
    without = _without_each(*first), _without_each(*second)
    if estimates[0] is None or estimates[1] is None or without[0] is None or without[1] is None:
        return None
    estimate, half = estimates[0] - estimates[1], half_width(without[0] - without[1])
    return Interval(estimate=estimate, low=max(-1.0, estimate - half), high=min(1.0, estimate + half))


def half_width(without: FloatArray) -> float:
    """Return Student's t times sqrt((S-1)/S sum (estimate - mean)^2). without: (S,), the estimates without one sample each."""
    number = len(without)
    variance = (number - 1) / number * np.square(without - without.mean()).sum()
    return float(student_t(number - 1) * np.sqrt(variance))


def _without_each(part: FloatArray, counted: FloatArray) -> FloatArray | None:
    """Return the S values of `pair_share` without one sample; None with fewer than 4 samples, or if no pair would be left."""
    of_each = _of_each_sample(counted)
    left = counted.sum() - of_each
    if len(of_each) < FEWEST or not (left > 0).all():
        return None
    return np.asarray((part.sum() - _of_each_sample(part)) / left)


def _of_each_sample(values: FloatArray) -> FloatArray:
    """Sum values of pairs (P,) over the pairs of each sample, (S,)."""
    samples = (1 + math.isqrt(1 + 8 * len(values))) // 2
    first, second = np.triu_indices(samples, 1)
    return np.asarray(np.bincount(first, values, samples) + np.bincount(second, values, samples))


def rates(sums: PairSums) -> Rates:
    """Compute the rates over all units and pairs of ``sums``."""
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
    """Return the shares of ``valid`` with a cosine below gamma - tau (``low``) and below gamma + tau (``high``); all three (P,)."""
    return Undecided(low=pair_share(low, valid), high=pair_share(high, valid))


def clipped(cosine: float | None) -> float | None:
    """Clip a cosine to [-1, 1], which rounding may exceed."""
    return None if cosine is None else min(1.0, max(-1.0, cosine))


def _historic_rate(sums: PairSums) -> float | None:
    """Return the share with cos < 0 of the ordered pairs with nonzero gradients, including each sample with itself."""
    total = 2 * sums.valid.sum() + len(sums.gram) * sums.units - sums.zeros
    return float(2 * sums.negative.sum() / total) if total else None


def _historic_similarity(sums: PairSums) -> float | None:
    """Return the mean over all S x S ordered pairs; None if a sample has no gradient: as published this is 0/0, of it with itself."""
    samples = len(sums.gram)
    if not sums.units or sums.zeros:
        return None
    return float((2 * sums.similarity.sum() + samples * sums.units) / (sums.units * samples**2))


def whole(gram: FloatArray, thresholds: Thresholds) -> Whole:
    """Compute the rates between samples' whole gradients, and the statistics of their sum."""
    largest = np.diag(gram).max()
    scaled = torch.from_numpy(gram * (4.0**LARGEST / largest) if largest > 0 else gram)
    of_pairs = rates(PairSums.of(Pairs(packed(scaled[None]), len(gram)), thresholds))
    low, high = noise_bounds(gram)
    return Whole(
        **of_pairs.model_dump(include=set(Whole.model_fields)),
        noise_scale=noise_scale(gram),
        noise_scale_low=low,
        noise_scale_high=high,
        effective_samples=concentration(np.diag(gram))[1],
    )


def cosines(gram: FloatArray) -> FloatArray:
    """Return the cosines (S, S), 1 on the diagonal and NaN for a sample without gradient."""
    norms = np.sqrt(np.diag(gram))
    values = np.divide(gram, norms[:, None] * norms, out=np.full_like(gram, np.nan), where=_valid(gram))
    values = np.clip(values, -1.0, 1.0)
    values[np.diag(_valid(gram)), np.diag(_valid(gram))] = 1.0
    return np.asarray(values)


def rounded(matrix: FloatArray, digits: int) -> tuple[tuple[float | None, ...], ...]:
    """Round a matrix to ``digits`` digits after the point; None for NaN."""
    return tuple(tuple(None if math.isnan(value) else value for value in row) for row in matrix.round(digits).tolist())


def noise_scale(gram: FloatArray) -> float | None:
    """Return tr(covariance) / |mean|^2 of the S gradients, both unbiased: B_simple of McCandlish et al., arXiv 1812.06162.

    None if the estimate of |mean|^2 is not above 0: the signal cannot be distinguished from noise.
    """
    number = len(gram)
    signal = (gram.sum() - np.trace(gram)) / (number * (number - 1))
    return _quotient(_noise(gram), signal)


def noise_bounds(gram: FloatArray) -> tuple[float | None, float | None]:
    """Return the ends of a 95% interval of `noise_scale`; None for an end that the samples do not bound.

    The interval is that of |mean|^2, by the jackknife; the trace of the covariance, a mean over all weights, is taken as known.
    """
    number = len(gram)
    if number < FEWEST:
        return None, None
    products, of_each = gram.sum() - np.trace(gram), gram.sum(1) - np.diag(gram)
    signal, half = products / (number * (number - 1)), half_width((products - 2 * of_each) / ((number - 1) * (number - 2)))
    noise = _noise(gram)
    return _quotient(noise, signal + half), _quotient(noise, signal - half)


def _noise(gram: FloatArray) -> float:
    """Return the unbiased trace of the covariance of the gradients, 0 where it is below the rounding error of float32."""
    noise = float((np.trace(gram) - gram.sum() / len(gram)) / (len(gram) - 1))
    return noise if noise > _ROUNDING * np.trace(gram) else 0.0


def concentration(squares: FloatArray) -> tuple[float | None, float | None]:
    """Return the largest share of the sum of ``squares`` (S,), and the effective number (sum x)^2 / sum x^2, x in ``squares``."""
    total = squares.sum()
    if not total > 0:
        return None, None
    shares = squares / total
    return float(shares.max()), float(1 / np.square(shares).sum())


def dominance(gram: FloatArray, leading: FloatArray) -> Dominance:
    """Compute the dominance of each sample. leading: (S,), share of the units in which its norm is the largest, NaN without units."""
    squares, total = np.diag(gram), gram.sum()
    rows = []
    for sample, square in enumerate(squares):
        along = gram[sample].sum()  # g_s . (sum of all)
        rest = max(total - 2 * along + square, 0.0)  # |sum of the others|^2
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
    top_share, effective = concentration(squares)
    return Dominance(
        top_sample=None if top_share is None else int(np.argmax(squares)),
        top_share=top_share,
        effective_samples=effective,
        diversity=_quotient(np.trace(gram), total),
        samples=tuple(rows),
    )


def _valid(gram: FloatArray) -> "np.ndarray[tuple[int, int], np.dtype[np.bool_]]":
    present = np.diag(gram) > _SMALLEST_SHARE * float(np.diag(gram).max())
    return present[:, None] & present


def _quotient(above: float, below: float) -> float | None:
    return float(above / below) if below > 0 and np.isfinite(above / below) else None
