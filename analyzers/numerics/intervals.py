"""Computes confidence intervals of shares, means and quantiles, estimated from a sample of blocks, and of means of few numbers."""

from dataclasses import dataclass
from functools import cache
from math import atan, cos, exp, lgamma, pi, sin, sqrt

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

Z = 1.959963984540054  # two-sided 95% of the normal distribution
UNSEEN = 3.0  # if a kind occurs in none of B independent blocks, fewer than 3/B of all blocks are of that kind, with 95% confidence
FEWEST = 20.0  # effective blocks; a sum, or its variance, that fewer carry has no interval


@dataclass(frozen=True, slots=True, eq=False)
class Interval:
    """(p,) shares with 95% intervals, ``0 <= low <= estimate <= high <= 1``; all three NaN where nothing was tested."""

    estimate: FloatArray
    low: FloatArray
    high: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class _Strata:
    """The strata (axis s) of blocks (axis b). member: (s, b) 1 where the block is of the stratum; the others are (s, 1).

    read: elements read; drawn: blocks; scale: elements that one read element stands for; unread: share not read, 0 if no block was.
    """

    member: FloatArray
    read: FloatArray
    drawn: FloatArray
    scale: FloatArray
    unread: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """The blocks that were read (axis b), each an independent unit, whichever tensor it lies in.

    stratum: (b,) number of the block's stratum, within which blocks are drawn with equal chances. elements: (b,) length of the block, at
    least 1. population: (strata,) elements of each stratum, read or not; a stratum of which all were read is known exactly.
    """

    stratum: IntArray
    elements: IntArray
    population: IntArray

    def shares(self, tested: IntArray, positive: IntArray) -> Interval:
        """Estimate the share of values with a property, among those it applies to, in the whole population.

        For several properties at once (axis p). tested: (b, p) or (b, 1) values the property applies to, at most ``elements``; positive:
        (b, p) values that have it, at most ``tested``. Estimate and variance are those of `_ratio`.

        The variance says how many independent values would be as informative, n = p(1-p)/variance, and the bounds are Wilson's with
        continuity correction for n values. That is the construction of Korn and Graubard (Survey Methodology 24, 1998), with Wilson's
        bounds for Clopper and Pearson's; unlike a bootstrap it holds for a handful of positive blocks. Where strata that were read entirely
        differ in their share from the rest, the estimate also depends on how many values of the rest are tested: ``|p_rest - p|
        sd(tested) / tested`` is added in quadrature.

        In addition, all B_s blocks of a stratum may have missed a kind of block that makes up 3/B_s of it. So the bounds are never closer
        to the estimate than if that part of one stratum's unread elements had the property throughout, or lacked it throughout. Where
        nothing was found this is the rule of three: ``high`` is about 3/B, and never less.

        If everything is read, ``low``, ``high`` and ``estimate`` are equal and exact. Elements of strata without any block may have any
        value, and the interval covers that.
        """
        strata = self._strata()
        having: FloatArray = positive.astype(np.float64)
        asked: FloatArray = np.broadcast_to(tested, positive.shape).astype(np.float64)
        estimate, domain, squares = self._ratio(strata, having, asked)
        estimate, domain = np.where(domain > 0, estimate, 0.0), np.where(domain > 0, domain, np.nan)
        found, seen = strata.member @ having, strata.member @ asked  # (s, p)
        open_, unread = strata.unread > 0, strata.unread
        weight = np.where(open_, strata.scale * seen / domain, 0.0)  # of each stratum that was not read entirely, in the estimate
        # Student's quantile to first order, because the variance is itself an estimate
        freedom = max(float(np.where(open_, strata.drawn - 1, 0.0).sum()), 1.0)
        student = Z + (Z**3 + Z) / (4 * freedom)
        open_found, open_share = np.where(open_, strata.scale * found, 0.0).sum(axis=0) / domain, weight.sum(axis=0)
        tests = np.where(open_, seen, 0.0).sum(axis=0)
        variance = squares.sum(axis=0)
        below, above = _score_margins(found=open_found, weight=open_share, variance=variance, tested=tests, student=student)
        # The number of tested values is also an estimate, except in strata that were read entirely.
        of_domain = self._squares(strata, asked).sum(axis=0) / domain**2
        apart = np.abs(open_found / np.where(open_share > 0, open_share, 1.0) - estimate) * (open_share > 0)
        below, above = (np.hypot(margin, student * apart * np.sqrt(of_domain)) for margin in (below, above))
        independent = strata.member @ (asked > 0)
        missed = weight * unread * np.minimum(UNSEEN / np.maximum(independent, 1), 1)
        share = found / np.maximum(seen, 1)
        high = estimate + np.maximum(above, (missed * (1 - share)).max(axis=0, initial=0))
        low = estimate - np.maximum(below, (missed * share).max(axis=0, initial=0))
        three = UNSEEN * (weight * unread).sum(axis=0) / np.maximum(np.where(open_, independent, 0).sum(axis=0), 1)
        high, low = np.maximum(high, three), np.minimum(low, 1 - three)
        blind = float(self.population[strata.read[:, 0] == 0].sum()) / max(float(self.population.sum()), 1.0)
        low, high = np.clip(low, 0, 1) * (1 - blind), np.clip(high, 0, 1) * (1 - blind) + blind
        return Interval(*(np.where(domain > 0, value, np.nan) for value in (estimate, low, high)))

    def unseen(self) -> float:
        """Bound, with 95% confidence, the share of all elements in blocks of a kind that does not occur among the blocks read."""
        return float(self.shares(self.elements[:, None], np.zeros((len(self.elements), 1), np.int64)).high[0])

    def ratio(self, above: FloatArray, below: FloatArray, largest: float = np.inf) -> Interval:
        """Estimate ratios of sums over the population, ``sum above / sum below``, in (0, largest); NaN if few blocks carry a sum.

        above, below: (b, p) sums over each block. The interval is symmetric in the logarithm of the ratio, with a finite ``largest`` in its
        logit: a sum of few large terms is skewed. Nothing bounds the terms of blocks that were not read. So there is no interval if
        ``(sum x)^2 / sum x^2`` is less than `FEWEST`, either for the weighted terms x of one of the sums (few blocks carry it; squares are
        summed over strata read in part), or for the terms of the variance (its tail is heavy). Nor is there one if a stratum has no block.
        """
        strata = self._strata()
        weight, part = (each[self.stratum] for each in (strata.scale, strata.unread))
        ratio, domain, squares = self._ratio(strata, above, below)
        known = (ratio > 0) & (domain > 0) & (strata.read[self.population > 0] > 0).all()
        for terms in (above, below):
            x = weight * terms
            known &= x.sum(axis=0) ** 2 >= FEWEST * (part * x**2).sum(axis=0)
        variance, tiny = squares.sum(axis=0), np.finfo(np.float64).tiny
        freedom = 1 / np.maximum(((squares / np.maximum(variance, tiny)) ** 2).sum(axis=0), 1e-12)
        ratio = np.where(known & (freedom >= FEWEST), ratio, np.nan)
        margin = (Z + (Z**3 + Z) / (4 * freedom)) * np.sqrt(variance)
        rest = np.maximum(1 - ratio / largest, 1e-15)
        factor = np.exp(np.minimum(margin / np.maximum(ratio * rest, tiny), 700))
        low, high = (odds / (1 + odds / largest) for odds in (ratio / rest / factor, ratio / rest * factor))
        return Interval(ratio, np.minimum(low, ratio), np.maximum(high, ratio))

    def _strata(self) -> _Strata:
        population = self.population[:, None].astype(np.float64)
        member = (self.stratum == np.arange(len(population))[:, None]).astype(np.float64)
        read, drawn = (member @ self.elements)[:, None], member.sum(axis=1, keepdims=True)
        unread = np.where(read > 0, np.clip(1 - read / np.maximum(population, 1), 0, 1), 0.0)
        return _Strata(member, read, drawn, population / np.maximum(read, 1), unread)

    def _ratio(self, strata: _Strata, above: FloatArray, below: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return ratios of sums over the population (p,), the sums below, and the contributions of the blocks to the variance (b, p).

        The combined ratio estimator for blocks drawn with equal chances within a stratum: ``sum_s N_s A_s/E_s / sum_s N_s B_s/E_s`` over
        strata s with N_s elements, of which E_s were read with sums A_s and B_s. Its variance is linearised, with the finite population
        correction.
        """
        total, domain = ((strata.scale * (strata.member @ terms)).sum(axis=0) for terms in (above, below))
        one = np.where(domain > 0, domain, 1.0)
        ratio = total / one
        return ratio, domain, self._squares(strata, above - ratio * below) / one**2

    def _squares(self, strata: _Strata, terms: FloatArray) -> FloatArray:
        """Return the contributions of the blocks to the variance of the population's sum of ``terms``: (b, p)."""
        centre = np.where(strata.drawn > 1, (strata.member @ terms) / np.maximum(strata.read, 1), 0.0)
        inflated = strata.unread * strata.scale**2 * strata.drawn / np.maximum(strata.drawn - 1, 1)
        squares: FloatArray = inflated[self.stratum] * (terms - centre[self.stratum] * self.elements[:, None]) ** 2
        return squares


def _score_margins(
    found: FloatArray, weight: FloatArray, variance: FloatArray, tested: FloatArray, student: float
) -> tuple[FloatArray, FloatArray]:
    """Return how far below and above its estimate the share may lie, (p,) each, by Wilson's bounds for an effective number of values.

    Only the part of the population not read entirely is uncertain: ``weight`` of the whole, of which ``found`` is positive, with a standard
    error of ``sqrt(variance)``; the bounds allow for ``student`` standard errors. ``tested``: values tested in that part. Zero if the
    blocks do not differ.
    """
    uncertain = (variance > 0) & (found > 0) & (found < weight)
    weight, variance = np.where(uncertain, weight, 1.0), np.where(uncertain, variance, 1.0)
    p = np.where(uncertain, found, 0.5) / weight
    q = 1 - p
    n = np.maximum(np.minimum(p * q * weight**2 / variance, tested), 1) * (Z / student) ** 2
    centre, spread = 2 * n * p + Z**2, 2 * (n + Z**2)
    low = (centre - 1 - Z * np.sqrt(np.maximum(Z**2 - 2 - 1 / n + 4 * p * (n * q + 1), 0))) / spread
    high = (centre + 1 + Z * np.sqrt(np.maximum(Z**2 + 2 - 1 / n + 4 * p * (n * q - 1), 0))) / spread
    below, above = weight * np.maximum(p - low, 0), weight * np.maximum(high - p, 0)
    return np.where(uncertain, below, 0.0), np.where(uncertain, above, 0.0)


@cache
def student_t(freedom: int) -> float:
    """Return Student's quantile: the t with P(|T| <= t) = 0.95 for ``freedom`` degrees of freedom, 1 or more. Raises ValueError.

    The distribution is a finite sum of powers of cos(atan(t / sqrt(freedom))) (Abramowitz and Stegun, 26.7.3 and 26.7.4). It is concave,
    so that Newton's steps from the normal quantile, which is smaller, approach t from below. SciPy has it too, but takes long to import.
    """
    if freedom < 1:
        raise ValueError(f"Student's t has at least 1 degree of freedom, not {freedom}.")
    odd = freedom % 2
    numbers = np.arange(1 + odd, freedom - 1, 2)
    factors = np.cumprod(np.concatenate(([1.0], numbers / (numbers + 1))))[: freedom // 2]
    density = exp(lgamma((freedom + 1) / 2) - lgamma(freedom / 2)) / sqrt(freedom * pi)
    t, step = Z, 1.0
    while step > 1e-15 * t:
        angle = atan(t / sqrt(freedom))
        series = float(factors @ cos(angle) ** (2 * np.arange(factors.size) + odd))
        share = 2 / pi * (angle + sin(angle) * series) if odd else sin(angle) * series
        step = (0.95 - share) / (2 * density * (1 + t * t / freedom) ** (-(freedom + 1) / 2))
        t += step
    return t
