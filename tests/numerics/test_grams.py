"""Loops over Gram matrices against float64: any number of samples and columns, memory that ends with the array, hostile values."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from analyzers.numerics.grams import gram_matrices, sum_over_others, sum_over_units

SMALLEST = 2.0**-100
THRESHOLDS = np.array([np.inf, 0.25, -0.25, 0.5, 0], np.float32)


def products(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """By the loop, between guards that it must not touch."""
    units, samples, _ = vectors.shape
    room = np.full((units + 2, samples, samples), np.float32(7))
    gram_matrices(vectors, room[1:-1])
    assert (room[[0, -1]] == 7).all()
    return room[1:-1]


@given(st.integers(0, 3), st.integers(1, 21), st.integers(0, 70), st.integers(0, 1 << 30))
@settings(max_examples=200, deadline=None)
def test_products_of_any_shape(units: int, samples: int, width: int, seed: int) -> None:
    vectors = np.random.default_rng(seed).standard_normal((units, samples, width)).astype(np.float32)
    found, expected = products(vectors), np.einsum("nsd,nrd->nsr", *2 * (vectors.astype(np.float64),))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert np.array_equal(found, found.swapaxes(1, 2))


@pytest.mark.parametrize("width", [1023, 1024, 1025, 5000])
def test_wide_vectors_lose_nothing_between_parts(width: int) -> None:
    """Small whole numbers, whose sums float32 holds exactly."""
    vectors = np.random.default_rng(width).integers(-8, 9, (2, 50, width)).astype(np.float32)
    assert np.array_equal(products(vectors), np.einsum("nsd,nrd->nsr", *2 * (vectors.astype(np.float64),)))


def test_a_number_that_is_not_finite_stays_where_it_belongs() -> None:
    vectors = np.ones((2, 9, 20), np.float32)
    vectors[0, 3, 19], vectors[0, 5, 0] = np.nan, np.inf
    found = products(vectors)
    others = [s for s in range(9) if s not in (3, 5)]
    assert np.isnan(found[0, 3]).all() and np.isnan(found[0, :, 3]).all()
    assert (found[0, 5, [*others, 5]] == np.inf).all()
    assert (found[0][np.ix_(others, others)] == 20).all() and (found[1] == 20).all()


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
