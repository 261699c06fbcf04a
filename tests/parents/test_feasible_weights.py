"""Weights from exact values: cells against neighbouring numbers, the weights and their bounds against a search in torch's arithmetic."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from analyzers.parents.feasible_weights import bounds, closest
from analyzers.parents.rounding import cells
from tests.cases import few
from tests.parents.checkpoints import BF16, F16, F32, Folder, Tensors, merged, model, tuned

BASE = model(10)


@pytest.mark.parametrize(("dtype", "name"), [(BF16, "BF16"), (F16, "F16")])
def test_cells_end_halfway_to_the_neighbours(dtype: torch.dtype, name: str) -> None:
    patterns = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype).double()
    numbers = np.unique(patterns[patterns.isfinite()].numpy() + 0.0)
    low, high = cells(numbers, name)
    halfway = (numbers[:-1] + numbers[1:]) / 2
    assert np.array_equal(low[1:], halfway) and np.array_equal(high[:-1], halfway)


@pytest.mark.parametrize("apart", [0.002, 0.01, None])
@pytest.mark.parametrize("dtype", [BF16, F16])
def test_bounds_contain_every_weight_that_gives_the_same_values(apart: float | None, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    base, first, second = (0.02 * torch.randn(4_000, generator=generator) for _ in range(3))
    if apart is not None:
        first, second = base + apart * first, base + apart * second
    first, second = first.to(dtype), second.to(dtype)

    def merge(weight: float) -> torch.Tensor:
        return (weight * first.to(F32) + (1 - weight) * second.to(F32)).to(dtype)

    child, name = merge(0.85), "BF16" if dtype is BF16 else "F16"
    x, p, q = (each.double().numpy() for each in (child, first, second))
    start = np.linalg.lstsq(np.stack([p, q], axis=1), x, rcond=None)[0]
    found = closest(x, np.stack([p, q]), start, name)
    low, high = bounds(x, np.stack([p, q]), found, name)
    assert found == pytest.approx([0.85, 0.15], abs=0.001) and (high - low < 0.01).all()
    steps = 0.85 + np.linspace(-1, 1, 401) * float((high - low).max())
    same = [step for step in steps if bool((merge(step) == child).all())]
    assert same and low[0] <= min(same) <= max(same) <= high[0]
    assert any(bool((merge(step) != child).any()) for step in steps)


def test_powers_of_two_leave_both_bounds() -> None:
    """Their lower half-spaces are the nearest of all: a linear program over these alone has no upper bound."""
    numbers = torch.cat([2.0 ** -torch.arange(1.0, 9).repeat(100), torch.randn(1_000, generator=torch.Generator().manual_seed(0))])
    x = numbers.to(BF16).double().numpy()
    low, high = bounds(x, x[None], np.array([1.0]), "BF16")
    assert 1 - 2**-8 < low[0] < 1 < high[0] < 1 + 2**-8


def test_absent_and_equal_parents_have_no_bounds() -> None:
    x = np.random.default_rng(0).standard_normal(500).astype(np.float32).astype(np.float64)
    low, high = bounds(x, np.stack([x, np.zeros_like(x)]), np.array([1.0, 0.0]), "F32")
    assert (low[1], high[1]) == (0, 0) and 0 < high[0] - low[0] < 1e-5
    low, high = bounds(x, np.stack([x, x]), np.array([0.5, 0.5]), "F32")
    assert (low < 0).all() and (high > 1).all()


@pytest.mark.parametrize(("weight", "apart"), few(product([0.05, 0.6, 1 / 3], [0.005, 0.01]), {0, 3}))
def test_siblings_an_ulp_or_two_apart(tmp_path: Path, weight: float, apart: float) -> None:
    siblings = tuned(BASE, apart, 21), tuned(BASE, apart, 22)
    child = merged((weight, 1 - weight), *siblings)
    report = Folder(tmp_path).parents(child, *siblings)
    fit = report.fit
    assert report.verdict == "merge" and fit is not None and fit.weights_by == "exact-values"
    assert [each.weight for each in fit.parents] == pytest.approx([weight, 1 - weight], abs=1e-4)
    assert all(each.low <= truth <= each.high for each, truth in zip(fit.parents, (weight, 1 - weight), strict=True))
    assert fit.exact_share is not None and fit.exact_share > 0.999
    assert all(row.low[0] <= weight <= row.high[0] for row in fit.layers)
    x, *parents = (torch.cat([tensor.flatten() for tensor in each.values() if tensor.dim() == 2]).double() for each in (child, *siblings))
    by_least_squares = torch.linalg.lstsq(torch.stack(parents, dim=1), x).solution[0].item()
    assert abs(by_least_squares - weight) > 20 * abs(fit.parents[0].weight - weight)


def test_a_merge_upcast_after_it_was_rounded(tmp_path: Path) -> None:
    other = model(11)
    child: Tensors = {name: each.to(F32) for name, each in merged((0.35, 0.65), BASE, other).items()}
    fit = Folder(tmp_path).parents(child, BASE, other).fit
    assert fit is not None and fit.weights_by == "exact-values" and fit.exact_share == 1
