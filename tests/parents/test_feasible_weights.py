"""Weights from exact values: cells against neighbouring numbers, and weights of merges of siblings."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from analyzers.comparison.parents.rounding import cells
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


@pytest.mark.parametrize(("weight", "apart"), few(product([0.05, 0.6, 1 / 3], [0.005, 0.01]), {0, 3}))
def test_siblings_an_ulp_or_two_apart(tmp_path: Path, weight: float, apart: float) -> None:
    siblings = tuned(BASE, apart, 21), tuned(BASE, apart, 22)
    child = merged((weight, 1 - weight), *siblings)
    report = Folder(tmp_path).parents(child, *siblings)
    fit = report.fit
    assert report.verdict == "merge" and fit is not None and fit.weights_by == "exact-values"
    assert [each.weight for each in fit.parents] == pytest.approx([weight, 1 - weight], abs=1e-4)
    assert all(each.low <= each.weight <= each.high for each in fit.parents)
    assert fit.exact_share is not None and fit.exact_share > 0.999
    x, *parents = (torch.cat([tensor.flatten() for tensor in each.values() if tensor.dim() == 2]).double() for each in (child, *siblings))
    by_least_squares = torch.linalg.lstsq(torch.stack(parents, dim=1), x).solution[0].item()
    assert abs(by_least_squares - weight) > 20 * abs(fit.parents[0].weight - weight)


def test_a_merge_upcast_after_it_was_rounded(tmp_path: Path) -> None:
    other = model(11)
    child: Tensors = {name: each.to(F32) for name, each in merged((0.35, 0.65), BASE, other).items()}
    fit = Folder(tmp_path).parents(child, BASE, other).fit
    assert fit is not None and fit.weights_by == "exact-values" and fit.exact_share == 1
