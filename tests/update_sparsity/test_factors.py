"""Measures of low-rank updates, compared with the singular value decomposition of the whole product."""

import numpy as np
import pytest
from numpy.typing import NDArray

from analyzers.update_sparsity.adapters.factors import effective_rank, inner, low_rank, singular_values, subspaces

Floats = NDArray[np.float64]


def _factors(seed: int, rows: int = 60, columns: int = 40, rank: int = 8) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, rank)), rng.normal(size=(rank, columns)) * np.geomspace(1, 1e-3, rank)[:, None]


@pytest.mark.parametrize("shape", [(60, 40, 8), (40, 60, 8), (5, 60, 16), (60, 5, 16), (7, 7, 7), (1, 9, 2)])
def test_singular_values_are_those_of_the_product(shape: tuple[int, int, int]) -> None:
    up, down = _factors(1, *shape)
    whole = np.linalg.svd(-0.5 * up @ down, compute_uv=False)
    found = singular_values(up, down, -0.5)
    np.testing.assert_allclose(found, whole[: len(found)], rtol=1e-10)
    assert len(found) == np.linalg.matrix_rank(up @ down) == min(shape)
    p = found / found.sum()
    assert effective_rank(found) == pytest.approx(np.exp(-(p * np.log(p)).sum()))


def test_the_rank_of_a_deficient_product_is_below_that_of_its_factors() -> None:
    up, down = _factors(2)
    up[:, 4:] = up[:, :4]  # 8 columns of rank 4
    assert len(singular_values(up, down, 2.0)) == 4
    down[:4] = -down[4:]  # and the two halves cancel
    assert len(singular_values(up, down, 2.0)) == 0
    assert effective_rank(singular_values(up, down, 2.0)) is None


@pytest.mark.parametrize("empty", ["up", "down", "scale"])
def test_an_update_of_zero_has_rank_0(empty: str) -> None:
    up, down = _factors(3)
    found = singular_values(up * (empty != "up"), down * (empty != "down"), float(empty != "scale"))
    assert len(found) == 0


def test_the_inner_product_is_that_of_the_products() -> None:
    (up, down), (other_up, other_down) = _factors(4), _factors(5, rank=3)
    one, other = low_rank(up, down, -2.0), low_rank(other_up, other_down, 0.5)
    np.testing.assert_allclose(one.left @ np.diag(one.values) @ one.right.T, -2 * up @ down, atol=1e-10)
    assert inner(one, other) == pytest.approx(float(((-2 * up @ down) * (0.5 * other_up @ other_down)).sum()), rel=1e-9)
    assert inner(one, low_rank(up, down, 1.0)) < 0


def test_principal_angles_are_those_of_the_column_spaces() -> None:
    from scipy.linalg import orth, subspace_angles

    (up, down), (other_up, other_down) = _factors(6), _factors(7, rank=3)
    other_up[:, 0] = up[:, 0] + 1e-6 * other_up[:, 0]  # nearly a common direction
    one, other = low_rank(up, down, 1.0), low_rank(other_up, other_down, 1.0)
    angles = subspace_angles(orth(up @ down), orth(other_up @ other_down))
    found = subspaces(one.left, other.left)
    assert found is not None
    assert found.shared == pytest.approx(np.square(np.cos(angles)).mean(), rel=1e-6)
    assert found.angle == pytest.approx(np.degrees(angles.min()), rel=1e-2)
    assert found.by_chance == 8 / 60


def test_spaces_that_contain_each_other_share_everything() -> None:
    up, down = _factors(8)
    one, part = low_rank(up, down, 1.0), low_rank(up[:, :3], down[:3], 1.0)
    inside = subspaces(one.left, part.left)
    assert inside is not None and inside.shared == pytest.approx(1) and inside.angle < 1e-5
    assert subspaces(one.left, low_rank(0 * up, down, 1.0).left) is None


def test_random_subspaces_share_as_much_as_by_chance() -> None:
    rng = np.random.default_rng(9)
    shared = []
    for _ in range(50):
        one, other = (np.linalg.qr(rng.normal(size=(64, rank)))[0] for rank in (4, 8))
        found = subspaces(one, other)
        assert found is not None and found.by_chance == 8 / 64
        shared.append(found.shared)
    assert np.mean(shared) == pytest.approx(8 / 64, abs=0.03)
