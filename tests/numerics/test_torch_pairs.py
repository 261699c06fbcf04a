"""The torch path counts what the compiled loop counts, on a GPU if there is one, else on the CPU: its code is the same."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from analyzers.numerics import PairCounter, PairTables, torch_pairs
from analyzers.numerics.conversions import changed as changed_pairs
from tests.numerics.test_pairs import PAIRS, counted, same_tables, weights, whole
from tests.numerics.values import TORCH, all_patterns, hostile32

WHERE = "cuda" if torch.cuda.is_available() else "cpu"
real_count: Callable[..., float] = torch_pairs.count_pairs


def counting(*arguments: Any) -> float:
    """The count, on the CPU if there is no GPU."""
    assert arguments[-1] == "cuda"
    return real_count(*arguments[:-1], WHERE)


def same(base: NDArray[Any], tuned: NDArray[Any], dtypes: tuple[str, str], eta: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_pairs, "count_pairs", counting)
    expected, tables = counted(base, tuned, dtypes, eta)
    for ours in (PairTables(), None):
        counter = PairCounter(*dtypes, eta, ours, "cuda")
        changed = np.empty(base.size, dtype=np.bool_)
        counter.update(base, tuned, changed)
        np.testing.assert_array_equal(changed, changed_pairs(base, tuned, dtypes))
        found = counter.take()
        assert whole(found) == whole(expected)
        for one, other in ((found.update_square, expected.update_square), (found.base_square, expected.base_square)):
            assert abs(one - other) <= other / 10**12
        if ours is not None:
            same_tables(ours, tables)


@pytest.mark.parametrize("eta", [1e-3, 2.0**-8, 1e-12])
@pytest.mark.parametrize("name", PAIRS)
def test_updates_of_every_kind(name: str, eta: float, monkeypatch: pytest.MonkeyPatch) -> None:
    same(*PAIRS[name](), eta, monkeypatch)


@pytest.mark.parametrize("dtype", [*TORCH, "F32"])
def test_hostile_values_of_every_dtype(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    codes: NDArray[Any] = hostile32() if dtype == "F32" else all_patterns(dtype)
    rng = np.random.default_rng(1)
    same(np.tile(codes, 2), np.concatenate([rng.permutation(codes), codes + codes.dtype.type(1)]), (dtype, dtype), 0.01, monkeypatch)


def test_equal_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = weights(1000).view(np.uint32)
    same(codes, codes, ("F32", "F32"), 1e-3, monkeypatch)
