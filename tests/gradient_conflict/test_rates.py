"""Rates, intervals and what is left open, against loops over units and pairs of written-out gradients."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch

from analyzers.gradient_conflict.rates import difference_interval, rates, share_interval
from analyzers.gradient_conflict.rows import Rates
from analyzers.gradient_conflict.sample_pairs import Pairs, PairSums, Thresholds, packed

from .captures import FloatArray, cosine

SAMPLES, UNITS = 6, 40


@pytest.fixture
def vectors() -> FloatArray:
    """(units, samples, width), with a common part, some dead units, and units that one sample has no gradient in."""
    random = np.random.default_rng(3)
    found = random.standard_normal((UNITS, SAMPLES, 5)) * 10.0 ** random.uniform(
        -3, 1, (UNITS, SAMPLES, 1)
    ) + 0.05 * random.standard_normal((UNITS, 1, 5))
    found[3] = 0
    found[7, 2] = found[9, :4] = 0
    return found


def sums(vectors: FloatArray, gamma: float = 0.0, tau: float = 0.1) -> PairSums:
    """In two chunks."""
    grams = torch.from_numpy(np.einsum("nsd,nrd->nsr", vectors, vectors))
    first, second = (PairSums.of(Pairs(packed(gram), SAMPLES), Thresholds(gamma, tau)) for gram in (grams[:15], grams[15:]))
    return first + second


def counted(vectors: FloatArray) -> list[tuple[FloatArray, FloatArray]]:
    """All pairs of all units that count."""
    pairs = [(unit[i], unit[j]) for unit in vectors for i, j in combinations(range(SAMPLES), 2)]
    return [(g, h) for g, h in pairs if min(np.linalg.norm(g), np.linalg.norm(h)) > 0]


@pytest.mark.parametrize("gamma", [0.0, -0.3, 0.4, 1.0])
def test_rates_are_shares_of_the_pairs(vectors: FloatArray, gamma: float) -> None:
    pairs, found = counted(vectors), rates(sums(vectors, gamma))
    cosines = np.array([cosine(g, h) for g, h in pairs])
    norms = np.array([(np.linalg.norm(g), np.linalg.norm(h)) for g, h in pairs])
    assert found.pairs == len(pairs)
    assert found.conflict_rate == pytest.approx((cosines < gamma).mean(), abs=1e-12)
    assert found.undecided.low == pytest.approx((cosines < gamma - 0.1).mean(), abs=1e-12)
    assert found.undecided.high == pytest.approx((cosines < gamma + 0.1).mean(), abs=1e-12)
    assert found.mean_cosine == pytest.approx(cosines.mean(), abs=1e-9)
    assert found.magnitude_similarity == pytest.approx((2 * norms.prod(1) / np.square(norms).sum(1)).mean(), abs=1e-9)


def published_rule(vectors: FloatArray) -> tuple[float, float]:
    """Rate and similarity by the rule of the published run (gamma 0), of gradients (units, samples, width), in NumPy."""
    norms = np.linalg.norm(vectors, axis=2)
    counted = (norms[:, :, None] > 0) & (norms[:, None] > 0)
    unit = vectors / np.where(norms > 0, norms, 1)[:, :, None]
    cosines = np.where(counted, unit @ unit.transpose(0, 2, 1), 0)
    squares = np.square(norms)
    with np.errstate(invalid="ignore"):
        similarity = 2 * norms[:, :, None] * norms[:, None] / (squares[:, :, None] + squares[:, None])
    return float((cosines < 0).sum() / counted.sum()), float(similarity.mean())


def test_the_historic_rate_is_that_of_the_published_rule(vectors: FloatArray) -> None:
    """With gradients that are zero in most units and samples too, as in a top-k layer; gamma changes nothing."""
    sparse = vectors * (np.random.default_rng(4).random((UNITS, SAMPLES, 1)) < 0.3)
    for gradients in (vectors, sparse):
        expected, similarity = published_rule(gradients)
        assert math.isnan(similarity)
        for gamma in (0.0, 0.5, -0.3):
            found = rates(sums(gradients, gamma))
            assert found.conflict_rate_historic == pytest.approx(expected, abs=1e-12)
            assert found.magnitude_similarity_historic is None
    alive = vectors[10:]
    found = rates(sums(alive))
    assert (found.conflict_rate_historic, found.magnitude_similarity_historic) == pytest.approx(published_rule(alive), abs=1e-9)
    assert rates(sums(np.zeros_like(vectors))).conflict_rate_historic is None


def test_intervals_leave_each_sample_out_with_all_its_pairs(vectors: FloatArray) -> None:
    without = []
    for sample in range(SAMPLES):
        pairs = counted(np.delete(vectors, sample, 1)[:, [*range(SAMPLES - 1), 0]] * np.array([*[1.0] * (SAMPLES - 1), 0.0])[:, None])
        without.append(np.mean([cosine(g, h) < 0 for g, h in pairs]))
    estimate = float(np.mean([cosine(g, h) < 0 for g, h in counted(vectors)]))
    error = math.sqrt((SAMPLES - 1) / SAMPLES * sum((each - np.mean(without)) ** 2 for each in without))
    interval = rates(sums(vectors)).interval
    assert interval is not None
    assert (interval.low, interval.estimate, interval.high) == pytest.approx(
        (estimate - 2.5706 * error, estimate, estimate + 2.5706 * error), abs=1e-4
    )


def test_intervals_hold_what_they_promise() -> None:
    """Samples that conflict with a propensity of their own: the mean over all samples lies in 95% of the intervals, give or take."""
    random, runs, number, inside = np.random.default_rng(0), 300, 20, 0
    for _ in range(runs):
        own = random.uniform(0.1, 0.5, number)
        found = np.array([random.binomial(30, (own[i] + own[j]) / 2) for i, j in combinations(range(number), 2)], dtype=float)
        interval = share_interval(found, np.full(len(found), 30.0))
        assert interval is not None
        inside += interval.low <= 0.3 <= interval.high
    assert 0.91 < inside / runs < 0.99


def test_a_difference_is_paired(vectors: FloatArray) -> None:
    one = sums(vectors)
    same = difference_interval((one.below, one.valid), (one.below, one.valid))
    assert same is not None and (same.low, same.estimate, same.high) == (0, 0, 0)
    other = sums(vectors + 0.3)
    found, back = (difference_interval((a.below, a.valid), (b.below, b.valid)) for a, b in ((one, other), (other, one)))
    assert found is not None and back is not None
    assert found.estimate == pytest.approx(rates(one).conflict_rate - rates(other).conflict_rate)  # type: ignore[operator]
    assert (found.low, found.high) == pytest.approx((-back.high, -back.low))


@pytest.mark.parametrize("scale", [0.0, 1e-25, 1e-12, 1.0, 1e12])
@pytest.mark.parametrize("gamma", [-1.0, 0.0, 0.5, 1.0])
def test_no_rate_exceeds_one_and_none_is_nan_in_float32(vectors: FloatArray, scale: float, gamma: float) -> None:
    parallel = np.concatenate([vectors, vectors[:, :1] * np.ones((1, SAMPLES, 1)), -vectors[:, [0, 0, 0, 1, 1, 1]]]) * scale
    gradients = torch.from_numpy(parallel).float()
    found = rates(PairSums.of(Pairs(packed(gradients @ gradients.transpose(1, 2)), gradients.shape[1]), Thresholds(gamma, 1e-3)))
    assert Rates.model_validate_json(found.model_dump_json()) == found  # JSON has no NaN
    shares = [found.conflict_rate, found.conflict_rate_historic, found.undecided.low, found.undecided.high, found.magnitude_similarity]
    assert all(share is None or 0 <= share <= 1 for share in shares)
    assert (found.conflict_rate is None) == (scale <= 1e-25)
    if found.conflict_rate is not None and found.undecided.low is not None and found.undecided.high is not None:
        assert found.undecided.low <= found.conflict_rate <= found.undecided.high
