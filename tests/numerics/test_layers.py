"""Loops of decoder layers against torch in float64: any shape, numbers that are large or none, and nothing touched that is not theirs."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy, rms_norm, silu

from analyzers.numerics import layers

Floats = NDArray[np.float32]
SMALLEST = 1e-37  # smaller numbers have few digits in float32
SHAPES = given(st.integers(1, 9), st.integers(1, 70), st.integers(-20, 20), st.integers(0, 1 << 30))


def numbers(seed: int, *shape: int, power: int = 0) -> Floats:
    return (np.random.default_rng(seed).standard_normal(shape) * 2.0**power).astype(np.float32)


def exact(array: Floats) -> Tensor:
    return torch.from_numpy(array.astype(np.float64)).requires_grad_()


def assert_near(found: NDArray[np.floating], expected: Tensor, tolerance: float = 2e-6) -> None:
    """To so much of the largest number."""
    difference = np.abs(found - expected.detach().numpy())
    assert difference.max(initial=0) <= tolerance * float(expected.detach().abs().max()) + SMALLEST


@SHAPES
@settings(max_examples=100, deadline=None)
def test_norms_and_their_gradients(rows: int, width: int, power: int, seed: int) -> None:
    given_rows, weight, gradient = numbers(seed, rows, width, power=power), numbers(seed + 1, width), numbers(seed + 2, rows, width)
    normed, inverse = np.empty_like(given_rows), np.empty(rows, np.float32)
    layers.rms_norm(given_rows, weight, 1e-6, normed, inverse)
    leaf, of_weight = exact(given_rows), exact(weight)
    expected = rms_norm(leaf, (width,), of_weight, 1e-6)
    assert_near(normed, expected)
    assert_near(inverse, (leaf.square().mean(1) + 1e-6).rsqrt())
    (arrived,) = torch.autograd.grad(expected, leaf, exact(gradient))
    total = numbers(seed + 3, rows, width)
    sum_of_both = exact(total) + arrived
    layers.add_rms_norm_gradient(gradient, given_rows, weight, inverse, total)
    scale = float((exact(gradient) * of_weight).detach().abs().max() * inverse.max())  # of what nearly cancels in it
    assert np.abs(total - sum_of_both.detach().numpy()).max() <= 1e-5 * max(scale, 1)


@given(st.integers(1, 3), st.integers(1, 9), st.integers(1, 3), st.sampled_from([2, 6, 32, 34, 64]), st.integers(0, 1 << 30))
@settings(max_examples=60, deadline=None)
def test_heads_are_turned_and_turned_back(samples: int, length: int, heads: int, size: int, seed: int) -> None:
    rows, cosines, sines = numbers(seed, samples * length, heads * size), numbers(seed + 1, length, size), numbers(seed + 2, length, size)
    leaf = exact(rows)
    split = leaf.view(samples, length, heads, size)
    half = torch.cat((-split[..., size // 2 :], split[..., : size // 2]), -1)
    cosine, sine = (exact(each)[None, :, None] for each in (cosines, sines))
    turned = (split * cosine + half * sine).reshape(leaf.shape)
    (back,) = torch.autograd.grad(turned, leaf, exact(rows))
    for expected, way in ((turned, False), (back, True)):
        found = rows.copy()
        layers.rotate(found, cosines, sines, way)
        assert_near(found, expected)


@given(st.integers(1, 4), st.integers(1, 300), st.integers(1, 40), st.integers(-3, 8), st.integers(0, 1 << 30))
@settings(max_examples=60, deadline=None)
def test_gated_activations_their_gradients_and_their_sums(samples: int, length: int, width: int, power: int, seed: int) -> None:
    rows = samples * length
    gate, up, gradient = numbers(seed, rows, width, power=power), numbers(seed + 1, rows, width), numbers(seed + 2, rows, width)
    lengths = np.random.default_rng(seed).integers(0, length + 1, samples)
    of_gate, of_up = exact(gate), exact(up)
    product = silu(of_gate) * of_up
    to_gate, to_up = torch.autograd.grad(product, (of_gate, of_up), exact(gradient))
    found = np.empty_like(gate)
    layers.swiglu(gate, up, found)
    assert_near(found, product)
    activity, again, left, right = np.ones((samples, width)), np.empty_like(gate), gate.copy(), up.copy()
    largest = layers.swiglu_gradient(gradient, left, right, again, lengths, activity)
    assert_near(again, product)
    assert_near(left, to_gate)
    assert_near(right, to_up)
    assert largest == tuple(float(np.abs(each).max()) for each in (left, right, again))
    real = torch.arange(length) < torch.from_numpy(lengths)[:, None]
    sums = (product.detach().abs().view(samples, length, width) * real[..., None]).sum(1)
    np.testing.assert_allclose(activity - 1, sums.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_magnitudes_tell_of_numbers_that_are_not_finite(odd: float) -> None:
    gate, up, gradient = (numbers(seed, 5, 40) for seed in range(3))
    gradient[3, 17] = odd
    found = layers.swiglu_gradient(gradient, gate, up, np.empty_like(gate), np.array([5]), np.zeros((1, 40)))
    assert [np.isfinite(each) for each in found] == [False, False, True]


@SHAPES
@settings(max_examples=100, deadline=None)
def test_cross_entropy_and_its_gradient(rows: int, size: int, power: int, seed: int) -> None:
    logits, weights = numbers(seed, rows, size, power=min(power, 6)), np.abs(numbers(seed + 1, rows))
    targets = np.random.default_rng(seed).integers(0, size, rows)
    leaf = exact(logits)
    expected = cross_entropy(leaf, torch.from_numpy(targets), reduction="none") * exact(weights)
    expected.sum().backward()  # type: ignore[no-untyped-call]
    losses = layers.cross_entropy(logits, targets, weights)
    np.testing.assert_allclose(losses, expected.detach().numpy(), rtol=1e-5, atol=1e-5)
    assert leaf.grad is not None
    np.testing.assert_allclose(logits, leaf.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_logits_of_any_size() -> None:
    logits = np.array([[-np.inf, 0, 0], [1e30, -1e30, 0], [0, np.nan, 0], [np.inf, 0, 0], [-300, 0, 300]], np.float32)
    targets, ones = np.array([1, 0, 0, 1, 0]), np.ones(5, np.float32)
    losses = layers.cross_entropy(logits, targets, ones)
    assert losses[[0, 1, 4]] == pytest.approx([np.log(2), 0, 600]) and np.isnan(losses[[2, 3]]).all()
    assert logits[[0, 1, 4]].tolist() == [[0, -0.5, 0.5], [0, 0, 0], [-1, 0, 1]]


@pytest.mark.parametrize("power", np.linspace(-89, 0, 200))
def test_powers_of_e_are_exact_to_the_last_bits(power: float) -> None:
    logits = np.array([[0, power]], np.float32)
    layers.cross_entropy(logits, np.array([0]), np.ones(1, np.float32))
    exponential = np.exp(np.float64(np.float32(power))) if power > -88 else 0.0
    assert logits[0, 1] == pytest.approx(exponential / (1 + exponential), rel=3e-7, abs=0)


def test_sums_of_magnitudes_and_rows_that_are_not_zero() -> None:
    rows = numbers(0, 1000, 33)
    np.testing.assert_allclose(layers.magnitudes(rows), np.abs(rows.astype(np.float64)).sum(0), rtol=1e-6)
    rows[[3, 500]] = 0
    rows[4], rows[5] = 0, 0
    rows[4, 32], rows[5, 0] = np.nan, -0.0
    found = layers.rows_with_any(rows)
    assert np.flatnonzero(~found).tolist() == [3, 5, 500]


@pytest.mark.parametrize("work", [layers.magnitudes, layers.rows_with_any])
def test_no_rows(work: Callable[[Floats], NDArray[np.generic]]) -> None:
    assert not work(np.empty((0, 4), np.float32)).any()
