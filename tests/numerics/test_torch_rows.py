"""The torch path finds the exact rows that the compiled loops find, on a GPU if there is one, else on the CPU: its code is the same."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from analyzers.checkpoints.reading.stream import _ON_DEVICE
from analyzers.numerics import Accumulator, PairCounter, PairTables, torch_rows
from analyzers.numerics.row_kernels import exact_rows16, exact_rows32
from analyzers.numerics.torch_kernels import on_device
from analyzers.numerics.torch_rows import exact_rows
from tests.numerics.readbacks import peak_bytes, readbacks
from tests.numerics.test_kernels import rows32
from tests.numerics.values import hostile32

WHERE = "cuda" if torch.cuda.is_available() else "cpu"


def same(codes: NDArray[Any], row: int, need: int) -> tuple[int, int]:
    found = exact_rows(on_device(codes, WHERE), row, need)
    assert found == (exact_rows32(codes, row, need) if codes.itemsize == 4 else (exact_rows16(codes, row, need), 0))
    return found


@pytest.mark.parametrize(("row", "at_once", "first"), [(32, 100, 256), (64, 1 << 22, 32), (300, 1000, 50), (300, 1 << 22, 256)])
def test_the_same_rows(row: int, at_once: int, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_rows, "_AT_ONCE", at_once)
    monkeypatch.setattr(torch_rows, "_FIRST", first)
    codes = rows32(np.random.default_rng(row), row)
    assert min(same(codes, row, 8)) >= 1
    same(codes & np.uint32(0xFFFF0000), row, 8)
    late = codes.reshape(-1, row) & np.uint32(0xFFFF0000)
    late[:, : row // 2] = 0x3F800000  # what is read first tells nothing
    same(late.reshape(-1), row, 8)
    for bits in (0xFFFF, 0xFFF8, 0xFFE0):
        values = codes.view(np.float32).clip(-6e4, 6e4).astype(np.float16).view(np.uint16) & np.uint16(bits)
        same(values, row, 10)


@given(st.lists(st.integers(0, 2**32 - 1) | st.sampled_from(hostile32().tolist()), min_size=1, max_size=3), st.integers(1, 23))
def test_hostile_values_among_exact_ones(spoilers: list[int], bits: int) -> None:
    i = np.arange(64)
    values = ((1 + (2 * i + 1) / 2.0**bits % 1) * 2.0 ** (i % 8 - 4)).astype(np.float32)
    codes = values.view(np.uint32).copy()
    codes[: len(spoilers)] = spoilers
    same(codes, 64, 8)
    with np.errstate(all="ignore"):
        half = values.astype(np.float16).view(np.uint16)
    half[: len(spoilers)] = [code & 0xFFFF for code in spoilers]
    same(half, 64, 10)


def test_rows_of_ordinary_weights_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = torch.randn(4000, 64, generator=torch.Generator().manual_seed(0)).to(WHERE) / 50
    monkeypatch.setattr(torch_rows, "_AT_ONCE", 1 << 14)
    with readbacks() as found:
        assert exact_rows(weights.view(torch.int32).view(-1), 64, 8) == (0, 0)
        assert exact_rows(weights.half().view(torch.int16).view(-1), 64, 10) == (0, 0)
    assert found == {"cpu": 2}
    with readbacks() as found:
        assert exact_rows(weights.bfloat16().float().view(torch.int32).view(-1), 64, 8)[0] > 3900
    assert found == {"cpu": 2}


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16])
def test_what_is_counted_in_place_needs_little_memory(kind: torch.dtype) -> None:
    """Of the largest part of a tensor, every row of which was rounded."""
    dtype = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}[kind]
    weights = torch.randn(_ON_DEVICE, generator=torch.Generator().manual_seed(0)).bfloat16().to(kind)
    patterns, moved = (each.view(torch.int32 if dtype == "F32" else torch.int16) for each in (weights, weights * 1.01))
    peaks = []
    with peak_bytes() as sizes:
        accumulator = Accumulator(dtype)
        accumulator.update(patterns)
        assert accumulator.take().values == _ON_DEVICE
        peaks.append(sizes[1])
        if dtype != "BF16":
            assert exact_rows(patterns, 4096, 8)[0] > 4000
        peaks.append(sizes[1])
        del accumulator
        counter = PairCounter(dtype, dtype, 1e-3, PairTables())
        counter.update(patterns, moved)
        assert counter.take().differ > _ON_DEVICE // 2
    assert max(peaks) <= sizes[1] <= 256 << 20, (peaks, sizes)
