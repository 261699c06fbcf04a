"""The torch path counts what the compiled loop counts, on a GPU if there is one, else on the CPU: its code is the same."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from analyzers.checkpoints.reading.stream import _ON_DEVICE
from analyzers.numerics import Accumulator, torch_pairs
from analyzers.numerics.conversions import changed as changed_pairs
from tests.cases import few
from tests.numerics.pair_counts import Counting, counted
from tests.numerics.readbacks import peak_bytes, readbacks
from tests.numerics.test_pairs import PAIRS, same, weights
from tests.numerics.values import TORCH

WHERE = "cuda" if torch.cuda.is_available() else "cpu"


def compared(base: NDArray[Any], tuned: NDArray[Any], dtypes: tuple[str, str], eta: float) -> None:
    expected = counted(base, tuned, dtypes, eta)
    for sized in (True, False):
        counting, changed = Counting(dtypes, eta, WHERE, sized), np.empty(base.size, dtype=np.bool_)
        counting.add(base, tuned, changed)
        np.testing.assert_array_equal(changed, changed_pairs(base, tuned, dtypes))
        if sized:
            same(counting, expected)
        assert counting.whole == expected.whole


@pytest.mark.parametrize("eta", few([1e-3, 2.0**-8, 1e-12], {0}))
@pytest.mark.parametrize("name", PAIRS)
def test_updates_of_every_kind(name: str, eta: float) -> None:
    compared(*PAIRS[name](), eta)


@pytest.mark.parametrize("dtypes", [("F32", "F32"), ("BF16", "BF16"), ("F16", "BF16"), ("BF16", "F32")])
def test_a_tensor_is_read_back_once(dtypes: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_pairs, "_AT_ONCE", 100)
    monkeypatch.setattr(torch_pairs, "_SORTED", 300)
    values = torch.from_numpy(weights(900)).to(WHERE)
    sides = [values.to(TORCH.get(dtype, torch.float32)).view(torch.int32 if dtype == "F32" else torch.int16) for dtype in dtypes]
    base, tuned = sides
    device = torch_pairs.DevicePairs(dtypes, 1e-3, True, base.device)
    with readbacks() as found:
        for _ in range(2):
            device.update(base, tuned)
        counts, *_ = device.take()
    assert counts.size and found.pop("_unique2", 0) == (0 if "F32" in dtypes else 6)
    assert found == {"cpu": 1}


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16])
def test_what_is_counted_in_place_needs_little_memory(kind: torch.dtype) -> None:
    """Of the largest part of a tensor."""
    dtype = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}[kind]
    weights = torch.randn(_ON_DEVICE, generator=torch.Generator().manual_seed(0)).to(kind)
    patterns, moved = (each.view(torch.int32 if dtype == "F32" else torch.int16) for each in (weights, weights * 1.01))
    with peak_bytes() as sizes:
        accumulator = Accumulator(dtype)
        accumulator.update(patterns)
        assert accumulator.take().values == _ON_DEVICE
        del accumulator
        device = torch_pairs.DevicePairs((dtype, dtype), 1e-3, True, patterns.device)
        device.update(patterns, moved)
        device.changed(patterns, moved)
        assert device.take()[0][2] > _ON_DEVICE // 2
    assert sizes[1] <= 256 << 20, sizes
