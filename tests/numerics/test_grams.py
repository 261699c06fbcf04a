"""Loops over Gram matrices against float64: any number of units and samples, gradients that are missing or small."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzers.numerics.grams import sum_over_others, sum_over_units, sum_shares

SMALLEST = 2.0**-100
THRESHOLDS = np.array([np.inf, 0.25, -0.25, 0.5, 0], np.float32)


@given(st.integers(0, 9), st.integers(1, 40), st.sampled_from([0.0, 1.5]), st.integers(-45, 60), st.integers(0, 1 << 30))
@settings(max_examples=200, deadline=None)
def test_sums_over_units(units: int, samples: int, floor: float, power: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    vectors = random.standard_normal((units, samples, 4)) * (random.random((units, samples, 1)) < 0.8) * 2.0**power
    grams = np.einsum("nsd,nrd->nsr", vectors, vectors).astype(np.float32)
    floor *= 2.0**power
    zeros, sums, counts = sum_over_units(grams, SMALLEST, floor, THRESHOLDS)
    exact = grams.astype(np.float64)
    norms = np.sqrt(np.einsum("nss->ns", exact))
    counted = (norms**2 > SMALLEST) & (norms >= floor)
    pair = counted[:, :, None] & counted[:, None]
    one, other = (np.where(pair, norms[:, :, None] * np.ones((1, 1, samples)), 1), np.where(pair, norms[:, None] + 0 * exact, 1))
    cosines = np.where(pair, exact / (one * other), 0)
    similarity = np.where(pair, 2 * one * other / (one**2 + other**2), 0)
    assert zeros == counted.size - counted.sum()
    for found, expected in zip(sums, (exact, cosines, similarity), strict=True):
        np.testing.assert_allclose(found, expected.sum(0), rtol=1e-5, atol=1e-5 * max(1.0, float(np.abs(expected).max(initial=0))))
        assert np.array_equal(found, found.T)
    off = ~np.eye(samples, dtype=bool)
    for number, threshold in zip(counts, THRESHOLDS, strict=True):
        near = pair & (np.abs(cosines - threshold) < 1e-5)
        low, high = (pair & (cosines < threshold) & ~near).sum(0), (pair & (cosines < threshold) | near).sum(0)
        assert ((low <= number) & (number <= high))[off].all()


@given(st.integers(0, 9), st.integers(1, 40), st.sampled_from([0.0, 1.5]), st.sampled_from([-0.25, 0.0, 0.25]), st.integers(0, 1 << 30))
@settings(max_examples=100, deadline=None)
def test_sums_over_other_samples(units: int, samples: int, floor: float, threshold: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    vectors = random.standard_normal((units, samples, 4)) * (random.random((units, samples, 1)) < 0.8)
    grams, chosen = np.einsum("nsd,nrd->nsr", vectors, vectors).astype(np.float32), (random.random(samples) < 0.6).astype(np.float32)
    pairs, below, similarity = sum_over_others(grams, SMALLEST, floor, threshold, chosen)
    for unit in range(units):
        norms = np.sqrt(np.diag(grams[unit]).astype(np.float64))
        counted = [s for s in range(samples) if chosen[s] and norms[s] ** 2 > SMALLEST and norms[s] >= floor]
        for s in range(samples):
            others = [r for r in counted if r != s] if s in counted else []
            cosines = np.array([grams[unit, s, r] / (norms[s] * norms[r]) for r in others])
            assert pairs[unit, s] == len(others)
            assert (cosines < threshold - 1e-5).sum() <= below[unit, s] <= (cosines < threshold + 1e-5).sum()
            alike = sum(2 * norms[s] * norms[r] / (norms[s] ** 2 + norms[r] ** 2) for r in others)
            assert similarity[unit, s] == pytest.approx(alike, rel=1e-5)


@given(st.integers(0, 9), st.integers(1, 40), st.integers(0, 1 << 30))
@settings(max_examples=100, deadline=None)
def test_shares_of_samples(units: int, samples: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    squares = random.standard_normal((units, samples)).astype(np.float32) ** 2 * (random.random((units, samples)) < 0.7)
    squares[random.random((units, samples)) < 0.1] = SMALLEST
    squares[:, samples // 2 :] = squares[:, : samples - samples // 2]  # equal ones: the first leads
    grams = random.standard_normal((units, samples, samples)).astype(np.float32)
    np.einsum("nss->ns", grams)[:] = squares
    live, top_share, effective, leading = sum_shares(grams, SMALLEST)
    counted = np.where(squares > SMALLEST, squares.astype(np.float64), 0)
    counted = counted[counted.sum(1) > 0]
    assert live == len(counted)
    assert top_share == pytest.approx(float((counted.max(1) / counted.sum(1)).sum()))
    assert effective == pytest.approx(float((counted.sum(1) ** 2 / (counted**2).sum(1)).sum()))
    assert np.array_equal(leading, np.bincount(counted.argmax(1), minlength=samples) if live else np.zeros(samples))
