"""Log-linear bins against the values that were put in."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from analyzers.numerics.pair_kernels import BINS, PER_BINADE, bin_of
from analyzers.numerics.sketches import Distribution, lower_edge

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
def test_what_a_distribution_says(name: str, zeros: int) -> None:
    rng = np.random.default_rng(1)
    values = SHAPES[name](rng)
    changed = rng.random(values.size) < 0.6
    distribution = filled(values, changed, zeros)
    for changed_only, kept in ((False, np.concatenate([np.zeros(zeros), values])), (True, values[changed])):
        found = distribution.summary(changed_only)
        if kept.size == 0:
            assert set(found.values()) == {None}
            continue
        scale, (mean, std) = float(kept.max()) if kept.max() > 1e-300 else 1.0, (found["mean"], found["std"])
        assert distribution.number(changed_only) == kept.size and found["max"] == kept.max() and mean is not None and std is not None
        assert mean == pytest.approx(float((kept / scale).mean()) * scale, rel=1e-12, abs=5e-324)
        assert std / scale == pytest.approx(float((kept / scale).std()), rel=1e-9, abs=1e-12)
        expected = np.quantile(kept, [0, 0.25, 0.5, 0.75, 0.9, 0.99])
        quantiles = np.array([found[name] for name in ("min", "p25", "p50", "p75", "p90", "p99")], np.float64)
        np.testing.assert_allclose(quantiles, expected, rtol=0.005)
        for exponent in (-148, -20, -8, 0, 100):
            assert distribution.below(exponent, changed_only) == (kept < 2.0**exponent).sum()
    for per_binade in (1, 4, 128):
        bins = distribution.histogram(per_binade)
        assert [each.low for each in bins] == sorted({each.low for each in bins}) and sum(each.count for each in bins) == values.size
        for each in bins:
            inside = (values >= each.low) & (values < each.high)
            assert (each.count, each.changed) == (int(inside.sum()), int((inside & changed).sum()))
            assert each.high / each.low <= 1 + 1 / per_binade + 1e-12
    squares, tops = np.sort((values / values.max()) ** 2)[::-1], (0.001, 0.01, 0.05, 0.5, 1.0)
    for top, energy in zip(tops, distribution.energy(tops), strict=True):
        count = int(np.ceil(top * (values.size + zeros)))
        assert energy == pytest.approx(squares[:count].sum() / squares.sum(), abs=0.01)
