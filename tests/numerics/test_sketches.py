"""Log-linear bins against the values that were put in."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from analyzers.numerics.pair_kernels import BINS, PER_BINADE, bin_of
from analyzers.numerics.sketches import Distribution, Summary, lower_edge

Floats = NDArray[np.float64]
SMALLEST, LARGEST = 2.0**-149, 2.0**129
POSITIVE = st.floats(min_value=SMALLEST, max_value=LARGEST)


def filled(values: Floats, changed: NDArray[np.bool_] | None = None, zeros: float = 0) -> Distribution:
    moved = np.zeros(values.size, dtype=np.bool_) if changed is None else changed
    counts = np.zeros((2, BINS))
    for plane, chosen in ((0, ~moved), (1, moved)):
        for value in values[chosen].tolist():
            counts[plane, bin_of(value)] += 1
    parts = values, values[moved]
    sums, squares, largest = (
        np.array([float(of(part)) for part in parts]) for of in (np.sum, lambda x: x @ x, lambda x: x.max(initial=0.0))
    )
    return Distribution(counts, zeros, sums, squares, largest)


SHAPES: dict[str, Callable[[np.random.Generator], Floats]] = {
    "normal": lambda rng: np.abs(rng.standard_normal(5_000)) * 1e-4,
    "wide": lambda rng: np.exp(rng.standard_normal(5_000) * 15),
    "few": lambda rng: rng.choice(np.array([2.0**-10, 3 * 2.0**-11, 1e-7]), 999),
    "one": lambda _: np.array([0.3]),
    "two": lambda _: np.array([1e-3, 1.0]),
    "smallest": lambda rng: np.ldexp(rng.integers(1, 1 << 20, 999).astype(np.float64), -149),
    "largest": lambda rng: LARGEST * rng.random(999),
}


@given(POSITIVE)
def test_a_bin_holds_the_value_and_is_narrow(value: float) -> None:
    number = bin_of(value)
    low, high = lower_edge(number), lower_edge(number + 1)
    assert low <= value < high and (high - low) / low <= 1 / PER_BINADE * 1.001


@pytest.mark.parametrize("zeros", [0, 1, 700, 100_000])
@pytest.mark.parametrize("name", SHAPES)
def test_summary(name: str, zeros: int) -> None:
    rng = np.random.default_rng(1)
    values = SHAPES[name](rng)
    changed = rng.random(values.size) < 0.6
    distribution = filled(values, changed, zeros)
    for changed_only, kept in ((False, np.concatenate([np.zeros(zeros), values])), (True, values[changed])):
        found = distribution.summary(changed_only)
        if kept.size == 0:
            assert found == Summary(0)
            continue
        assert found.count == kept.size and found.max == kept.max()
        scale = float(kept.max()) if kept.max() > 1e-300 else 1.0
        scaled = kept / scale
        assert found.mean is not None and found.mean == pytest.approx(float(scaled.mean()) * scale, rel=1e-12, abs=5e-324)
        assert found.std is not None and found.std / scale == pytest.approx(float(scaled.std()), rel=1e-9, abs=1e-12)
        expected = np.quantile(kept, [0, 0.25, 0.5, 0.75, 0.9, 0.99])
        quantiles = np.array([found.min, found.p25, found.p50, found.p75, found.p90, found.p99], dtype=np.float64)
        np.testing.assert_allclose(quantiles, expected, rtol=0.005)


def test_nothing_at_all() -> None:
    empty = filled(np.zeros(0))
    assert empty.summary(changed_only=False) == empty.summary(changed_only=True) == Summary(0)
    assert empty.energy([0.1]) == [None] and empty.histogram(4) == [] and empty.below(3, changed_only=False) == 0
    nothing = filled(np.zeros(0), zeros=5)
    assert nothing.energy([0.1]) == [None] and nothing.below(3, changed_only=False) == 5
    zeros = nothing.summary(changed_only=False)
    assert (zeros.count, zeros.mean, zeros.std, zeros.p99, zeros.max) == (5, 0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("name", SHAPES)
def test_shares_below_powers_of_two_are_exact(name: str) -> None:
    rng = np.random.default_rng(2)
    values = SHAPES[name](rng)
    changed = rng.random(values.size) < 0.3
    distribution = filled(values, changed)
    for exponent in (-148, -130, -20, -10, -8, -7, 0, 100):
        assert distribution.below(exponent, changed_only=False) == (values < 2.0**exponent).sum()
        assert distribution.below(exponent, changed_only=True) == (values[changed] < 2.0**exponent).sum()


@pytest.mark.parametrize("per_binade", [1, 4, 128])
@pytest.mark.parametrize("name", ["normal", "wide", "few", "largest"])
def test_histogram(name: str, per_binade: int) -> None:
    rng = np.random.default_rng(3)
    values = SHAPES[name](rng)
    changed = rng.random(values.size) < 0.3
    bins = filled(values, changed).histogram(per_binade)
    assert [bin_.low for bin_ in bins] == sorted({bin_.low for bin_ in bins})
    for bin_ in bins:
        inside = (values >= bin_.low) & (values < bin_.high)
        assert (bin_.count, bin_.changed) == (int(inside.sum()), int((inside & changed).sum()))
        assert bin_.high / bin_.low <= 1 + 1 / per_binade + 1e-12
    assert sum(bin_.count for bin_ in bins) == values.size


@pytest.mark.parametrize("zeros", [0, 50_000])
@pytest.mark.parametrize("name", ["normal", "wide", "few", "two"])
def test_energy_of_the_largest(name: str, zeros: int) -> None:
    values = SHAPES[name](np.random.default_rng(4))
    squares = np.sort((values / values.max()) ** 2)[::-1]
    tops = (0.001, 0.01, 0.05, 0.5, 1.0)
    distribution = filled(values, zeros=zeros)
    energies = distribution.energy(tops)
    for top, energy in zip(tops, energies, strict=True):
        count = int(np.ceil(top * (values.size + zeros)))
        assert energy == pytest.approx(squares[:count].sum() / squares.sum(), abs=0.01)
    assert energies[-1] == 1.0
