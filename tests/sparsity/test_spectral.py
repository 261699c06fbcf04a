"""Spectra of updates against numpy's and scipy's decompositions, against matrices made to have known answers, and what has no answer."""

import numpy as np
import pytest
import scipy.linalg
from numpy.typing import NDArray

from analyzers.comparison.sparsity.rows import Spectrum
from analyzers.comparison.sparsity.spectral import MASK_SHARE, MatrixPair, spectrum

Floats = NDArray[np.float64]
MEASURES = (
    "stable_rank", "effective_rank", "nss", "largest_angle_left", "largest_angle_right", "mean_angle_left", "mean_angle_right",
    "principal_overlap", "low_magnitude_overlap",
)  # fmt: skip


def compare(base: NDArray[np.floating], tuned: NDArray[np.floating], changed: NDArray[np.bool_] | None = None) -> Spectrum:
    """The spectrum of a pair in the precision given, by default with every differing element changed."""
    return spectrum(MatrixPair("w", base, tuned, base != tuned if changed is None else changed))


def oracle(base: Floats, tuned: Floats, k: int) -> dict[str, float]:
    """All but the overlaps, by singular value decompositions in float64."""
    left, values, right = np.linalg.svd(base)
    tuned_left, tuned_values, tuned_right = np.linalg.svd(tuned)
    update = np.linalg.svd(tuned - base, compute_uv=False)
    share = update[update > 0] / update.sum()
    lefts = np.degrees(scipy.linalg.subspace_angles(left[:, :k], tuned_left[:, :k]))
    rights = np.degrees(scipy.linalg.subspace_angles(right[:k].T, tuned_right[:k].T))
    return {
        "stable_rank": (update**2).sum() / update[0] ** 2,
        "effective_rank": np.exp(-(share * np.log(share)).sum()),
        "nss": np.sqrt(((tuned_values - values) ** 2).sum() / (values**2).sum()),
        "largest_angle_left": lefts.max(),
        "largest_angle_right": rights.max(),
        "mean_angle_left": lefts.mean(),
        "mean_angle_right": rights.mean(),
    }


def smallest(values: NDArray[np.floating], changed: NDArray[np.bool_]) -> float:
    """The overlap of ``changed`` with the smallest values, group of equal values by group."""
    left, held = MASK_SHARE * values.size, 0.0
    for value in np.unique(values):
        group = values == value
        taken = min(1.0, left / group.sum())
        held += taken * (group & changed).sum()
        left -= taken * group.sum()
    return float(held / changed.sum())


def pair(m: int, n: int, size: float, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """A normal matrix with falling singular values and one some ``size`` away."""
    rng = np.random.default_rng(seed)
    base = (rng.standard_normal((m, n)) / (1 + np.arange(m)[:, None])).astype(np.float32)
    return base, (base + size * rng.standard_normal((m, n))).astype(np.float32)


@pytest.mark.parametrize("size", [0.3, 1e-3, 1e-6])
@pytest.mark.parametrize(("m", "n"), [(130, 90), (90, 131), (64, 64), (1, 9), (9, 1), (1, 1)])
def test_measures_are_those_of_full_decompositions(m: int, n: int, size: float) -> None:
    base, tuned = pair(m, n, size)
    found = compare(base, tuned)
    assert found.shape == (m, n) and found.k == max(1, min(m, n) // 10) and found.mask_share == MASK_SHARE
    for name, expected in oracle(base.astype(np.float64), tuned.astype(np.float64), found.k).items():
        assert getattr(found, name) == pytest.approx(expected, rel=1e-7, abs=1e-9), name


@pytest.mark.parametrize("degrees", [1e-7, 1e-3, 10.0, 89.0])
def test_a_turn_of_the_leading_left_vector_is_that_angle(degrees: float) -> None:
    base = np.diag([3.0, 1.0, 0.5, 0.2])
    turn = np.eye(4)
    turn[:2, :2] = scipy.linalg.expm(np.radians(degrees) * np.array([[0.0, -1.0], [1.0, 0.0]]))
    found = compare(base, turn @ base)
    assert found.k == 1
    assert found.largest_angle_left == found.mean_angle_left == pytest.approx(degrees, rel=1e-7)
    assert found.largest_angle_right == pytest.approx(0, abs=1e-12) and found.nss == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize("changed_share", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("digits", [1, 6])
def test_overlaps_count_ties_in_part(changed_share: float, digits: int) -> None:
    rng = np.random.default_rng(4)
    base = np.round(rng.standard_normal((40, 60)), digits).astype(np.float32)
    changed = rng.random(base.shape) < changed_share * (0.2 + (np.abs(base) < 0.5))
    found = compare(base, base + 1, changed)
    assert found.low_magnitude_overlap == pytest.approx(smallest(np.abs(base), changed), rel=1e-12)
    left, values, right = np.linalg.svd(base.astype(np.float64), full_matrices=False)
    approximation = (left[:, : found.k] * values[: found.k]) @ right[: found.k]
    assert found.principal_overlap == pytest.approx(smallest(-np.abs(approximation), changed), abs=1.5 / changed.sum())


def nones(found: Spectrum) -> set[str]:
    return {name for name in MEASURES if getattr(found, name) is None}


def test_what_is_undefined_is_none() -> None:
    base, tuned = pair(40, 60, 0.1)
    ranks, overlaps = {"stable_rank", "effective_rank"}, {"principal_overlap", "low_magnitude_overlap"}
    angles = {name for name in MEASURES if "angle" in name}
    same = compare(base, base.copy())
    assert nones(same) == ranks | overlaps
    assert (same.nss, same.largest_angle_left, same.mean_angle_right) == pytest.approx((0, 0, 0), abs=1e-9)
    swallowed = compare(base, tuned, np.zeros(base.shape, bool))
    assert nones(swallowed) == overlaps
    zero = np.zeros_like(base)
    assert nones(compare(zero, zero)) == set(MEASURES)
    assert nones(compare(zero, tuned)) == {"nss"} | angles
    assert nones(compare(base, zero)) == angles
    thin = np.repeat(base[:3], 14, axis=0)[:40]  # of rank 3, where 4 leading vectors are asked for
    assert nones(compare(base, thin)) == angles == nones(compare(thin, base))
    broken = tuned.copy()
    broken[3, 4] = np.inf
    for sides in ((np.zeros((0, 8)), np.zeros((0, 8))), (base, broken), (broken, base), (base * np.nan, base)):
        assert nones(compare(*sides)) == set(MEASURES)
