"""From sums over units to rates, with the range that rounding leaves open and 95 % intervals by the delete-one jackknife.

Pairs of samples are not independent, samples are: each is left out in turn, with all of its pairs.
Axes: S samples.
"""

import numpy as np
import numpy.typing as npt

from analyzers.base import Interval
from analyzers.gradient_conflict.pairs import PairSums
from analyzers.gradient_conflict.summaries import Rates, Undecided
from analyzers.numerics import student_t

FloatArray = npt.NDArray[np.float64]

# Error of the cosines of gradients where the model ran in this format; in bfloat16 most cosines of unrelated pairs are smaller.
TAU = {"float64": 1e-9, "float32": 1e-3, "float16": 5e-3, "bfloat16": 2e-2}


FEWEST = 4  # samples; with 3 each rate without one of them would be that of a single pair


def pair_share(found: FloatArray, counted: FloatArray) -> float | None:
    """Sum of ``found`` divided by that of ``counted``, both (S, S) and symmetric, over distinct pairs; None without pairs."""
    pairs = _off_diagonal(counted)
    return float(_off_diagonal(found).sum() / pairs.sum()) if pairs.sum() > 0 else None


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
    found, counted = _off_diagonal(found), _off_diagonal(counted)
    left = counted.sum() - 2 * counted.sum(1)
    if len(counted) < FEWEST or not (left > 0).all():
        return None
    return np.asarray((found.sum() - 2 * found.sum(1)) / left)


def _off_diagonal(matrix: FloatArray) -> FloatArray:
    return np.asarray(matrix - np.diag(np.diag(matrix)))


def rates(sums: PairSums) -> Rates:
    """Over all units and pairs of ``sums``."""
    return Rates(
        pairs=int(np.tril(sums.valid, -1).sum()),
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
    """Shares of ``valid``, all three (S, S): of pairs below gamma - tau, and below gamma + tau."""
    below, above = pair_share(low, valid), pair_share(high, valid)
    return Undecided(low=below, high=above, share=None if below is None or above is None else above - below)


def clipped(cosine: float | None) -> float | None:
    """Within [-1, 1], which rounding may leave."""
    return None if cosine is None else min(1.0, max(-1.0, cosine))


def _historic_rate(sums: PairSums) -> float | None:
    """Of the ordered pairs whose gradients are both above 0, each sample with itself included: the share with cos < 0."""
    total = sums.valid_of_all.sum()
    return float(2 * np.tril(sums.historic, -1).sum() / total) if total else None


def _historic_similarity(sums: PairSums) -> float | None:
    """Mean over all S x S ordered pairs; as published it is not a number where one sample has no gradient: 0/0 of it with itself."""
    samples = len(sums.valid)
    if not sums.units or sums.zeros:
        return None
    return float((2 * np.tril(sums.similarity_of_all, -1).sum() + samples * sums.units) / (sums.units * samples**2))
