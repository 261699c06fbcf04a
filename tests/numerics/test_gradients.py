"""Loops over gradients of units against float64: any shape, memory around what they are given, hostile values, any size of cache."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from analyzers.numerics import gradients as loops
from analyzers.numerics.gradients import BINS, DROPPED, LARGEST, Panels, WeightCounts, unit_grams

Floats = NDArray[np.float32]
Exact = NDArray[np.float64]


def filled(right: Floats, counts: list[int], factor: float = 1.0) -> Panels:
    """In two parts, as two threads do it."""
    panels = Panels(counts, right.shape[1])
    for samples in (slice(len(counts) // 2, len(counts)), slice(0, len(counts) // 2)):
        panels.fill(right, factor, samples)
    return panels


def explicit(left: Floats, right: Floats, counts: list[int]) -> Exact:
    """(S, n, d), every gradient."""
    ends = np.cumsum([0, *counts])
    exact = [each.astype(np.float64) for each in (left, right)]
    return np.stack([exact[0][first:end].T @ exact[1][first:end] for first, end in pairwise(ends)])


def among_others(numbers: Floats, before: int, behind: int) -> Floats:
    """The same as columns of a larger matrix, which has nothing but NaN beside them."""
    room = np.full((len(numbers) + 1, before + numbers.shape[1] + behind), np.float32(np.nan))
    room[:-1, before : before + numbers.shape[1]] = numbers
    return room[:-1, before : before + numbers.shape[1]]


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=21), st.integers(0, 70), st.integers(1, 70), st.integers(0, 5), st.integers(0, 1 << 30)
)
@settings(max_examples=200, deadline=None)
def test_products_of_any_shape(counts: list[int], units: int, width: int, beside: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    left, right = (random.standard_normal((sum(counts), each)).astype(np.float32) for each in (units, width))
    found = unit_grams(among_others(left, beside, 5 - beside), filled(right, counts, 0.5), 4.0)
    exact = 2 * explicit(left, right, counts)
    np.testing.assert_allclose(found, np.einsum("snd,rnd->nsr", exact, exact), rtol=1e-4, atol=1e-4)
    assert np.array_equal(found, found.swapaxes(1, 2))


@pytest.mark.parametrize("counts", [[255, 0, 256], [257, 513, 1], [3] * 50, [1] * 130])
@pytest.mark.parametrize("width", [47, 384, 1000])
def test_nothing_is_lost_between_parts(counts: list[int], width: int) -> None:
    """Of tokens, columns, samples and units: small whole numbers, whose sums float32 holds exactly."""
    random = np.random.default_rng(width)
    left = random.integers(-1, 2, (sum(counts), 67)).astype(np.float32)
    right = random.integers(-1, 2, (sum(counts), width)).astype(np.float32)
    exact = explicit(left, right, counts)
    expected = np.einsum("snd,rnd->nsr", exact, exact)
    assert np.abs(expected).max() < 1 << 24
    assert np.array_equal(unit_grams(left, filled(right, counts), 1.0), expected)


def test_a_number_that_is_not_finite_stays_where_it_belongs() -> None:
    left, right = np.ones((18, 40), np.float32), np.ones((18, 20), np.float32)
    left[6, 3], left[10, 3] = np.nan, np.inf  # of samples 3 and 5
    found = unit_grams(left, filled(right, [2] * 9), 1.0)
    others = [s for s in range(9) if s not in (3, 5)]
    assert np.isnan(found[3, 3]).all() and np.isnan(found[3, :, 3]).all()
    assert (found[3, 5, [*others, 5]] == np.inf).all()
    assert (found[3][np.ix_(others, others)] == 80).all() and (np.delete(found, 3, 0) == 80).all()


def test_what_comes_out_does_not_depend_on_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    random, counts = np.random.default_rng(3), [40, 7, 0, 21, 300]
    left, right = (random.standard_normal((sum(counts), each)).astype(np.float32) for each in (45, 500))
    found = []
    for size in (1, 100_000, 1 << 24):
        monkeypatch.setattr(loops, "_CACHE_BYTES", size)
        weights = WeightCounts()
        found.append((unit_grams(left, filled(right, counts), 1.0, weights), weights))
    for grams, weights in found[1:]:
        assert np.array_equal(grams, found[0][0]) and np.array_equal(weights.bins, found[0][1].bins)
        np.testing.assert_allclose(weights.sums, found[0][1].sums, rtol=1e-12)


@given(st.integers(1, 9), st.integers(1, 40), st.integers(1, 60), st.sampled_from([0.0, 0.6, 1.0]), st.integers(0, 1 << 30))
@settings(max_examples=100, deadline=None)
def test_single_weights(samples: int, units: int, width: int, zeros: float, seed: int) -> None:
    """One token a sample, so that missing gradients can be chosen."""
    random = np.random.default_rng(seed)
    left = random.standard_normal((samples, units)) * (random.random((samples, units)) >= zeros)
    right = random.standard_normal((samples, width)) + 0.5
    found = WeightCounts()
    unit_grams(left.astype(np.float32), filled(right.astype(np.float32), [1] * samples), 1.0, found)
    exact = explicit(left.astype(np.float32), right.astype(np.float32), [1] * samples)
    positive, negative = (exact > 0).sum(0), (exact < 0).sum(0)
    signed = positive + negative
    counted = signed >= 2
    pairs = (signed * (signed - 1) / 2)[counted]
    mean = exact.mean(0)
    variance = np.square(exact - mean).sum(0) / max(1, samples - 1)
    conflict, agreement, signal, noise = found.sums.sum(1)
    assert found.counted == counted.sum() and found.bins.sum() == (signed > 0).sum()
    assert conflict == pytest.approx(((positive * negative)[counted] / pairs).sum(), rel=1e-5)
    assert agreement == pytest.approx((np.abs(positive - negative)[counted] / signed[counted]).sum(), rel=1e-5)
    assert signal == pytest.approx(np.square(mean).sum(), rel=1e-4, abs=1e-9)
    assert noise == pytest.approx(variance.sum(), rel=1e-4, abs=1e-4)
    if samples > 3 and not zeros:
        ratio = np.clip(np.square(mean) / variance, 1 / LARGEST, LARGEST).astype(np.float32)
        expected = np.bincount(ratio.view(np.int32).ravel() >> DROPPED, minlength=BINS)
        # Rounding moves a ratio to the next bin at most, and seldom.
        assert np.abs(np.cumsum(expected) - np.cumsum(found.bins)).max() <= 0.02 * expected.sum() + 2


def test_weights_whose_ratio_is_of_no_use_are_counted_at_the_ends() -> None:
    """The same gradient in every sample, and two that cancel each other out."""
    left, right = np.array([[1, 1], [1, -1]], np.float32), np.ones((2, 1), np.float32)
    found = WeightCounts()
    unit_grams(left, filled(right, [1, 1]), 1.0, found)
    ends = np.array([1 / LARGEST, LARGEST], np.float32).view(np.int32) >> DROPPED
    assert found.bins[ends].tolist() == [1, 1] and found.bins.sum() == 2
    assert found.sums.sum(1).tolist() == [1, 1, 1, 2]


@pytest.mark.parametrize("units", [1, 64])
def test_without_any_token_there_is_nothing(units: int) -> None:
    """As of an expert that no token came to. Such an array of torch's has no strides."""
    counts, right = [0, 0, 0], torch.empty(0, 5).numpy()
    weights = WeightCounts()
    for left in (torch.empty(0, 2 * units)[:, :units].numpy(), np.empty((0, units), np.float32)):
        found = unit_grams(left, filled(right, counts), 1.0, weights)
        assert found.shape == (units, 3, 3) and not found.any()
    assert (weights.counted, weights.sums.sum(), weights.bins.sum()) == (0, 0, 0)


@pytest.mark.parametrize(
    "left",
    [np.ones((3, 4), np.float64), np.ones((2, 4), np.float32), np.ones((3, 8), np.float32)[:, ::2]],
    ids=["dtype", "tokens", "apart"],
)
def test_other_arrays_are_refused(left: Floats) -> None:
    right = np.ones((3, 5), np.float32)
    with pytest.raises(ValueError, match="what units get"):
        unit_grams(left, filled(right, [1, 2]), 1.0)
    others: list[Any] = [right[:2], right[:, :4], right.astype(np.float64)]
    for inputs in others:
        with pytest.raises(ValueError, match="inputs are not"):
            Panels([1, 2], 5).fill(inputs, 1.0, slice(0, 2))
