"""Patterns at any address, contiguous or not, writable or not: what is counted is the same."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from analyzers.numerics import Accumulator
from tests.numerics.pair_counts import Codes, Counting
from tests.numerics.test_histogram import close
from tests.numerics.values import hostile32


def codes_of(dtype: str, seed: int) -> Codes:
    """Normal values between hostile ones."""
    values: NDArray[Any] = np.random.default_rng(seed).normal(scale=0.02, size=9216).astype(np.float32)
    codes = values.astype(np.float16).view(np.uint16) if dtype == "F16" else values.view(np.uint32)
    some = hostile32()[::2]
    codes[: some.size] = some.astype(codes.dtype)
    return (codes >> np.uint32(16)).astype(np.uint16) if dtype == "BF16" else codes


def placed(codes: Codes) -> list[Codes]:
    """The same behind multiples of 64 bytes, read-only, and strided."""
    found: list[Codes] = [codes, np.frombuffer(codes.tobytes(), dtype=codes.dtype), np.repeat(codes, 2)[::2]]
    for by in (1, 2, 61):
        memory = np.zeros(codes.nbytes + 128, np.uint8)
        start = -memory.ctypes.data % 64 + by
        memory[start : start + codes.nbytes] = codes.view(np.uint8)
        found.append(memory[start : start + codes.nbytes].view(codes.dtype))
        assert found[-1].flags.aligned == (by % codes.itemsize == 0)
    return found


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_one_checkpoint(dtype: str) -> None:
    found = []
    for codes in placed(codes_of(dtype, 1)):
        accumulator = Accumulator(dtype)
        accumulator.update(codes)
        found.append(accumulator.take())
    assert found[0].values == 9216
    for other in found[1:]:
        close(other, found[0])


@pytest.mark.parametrize("every", [1, 64])
@pytest.mark.parametrize("dtypes", [("BF16", "BF16"), ("F32", "BF16"), ("F32", "F32"), ("F16", "F16")])
def test_pairs(dtypes: tuple[str, str], every: int) -> None:
    base, tuned = codes_of(dtypes[0], 3), codes_of(dtypes[1], 3)
    found = []
    for one, other in zip(placed(base), placed((tuned + (tuned % every == 0)).astype(tuned.dtype))[::-1], strict=True):
        changed, counting = np.empty(one.size, dtype=np.bool_), Counting(dtypes)
        counting.add(one, other, changed)
        found.append((counting.whole, counting.bins.absolute.tolist(), changed.tolist()))
    assert all(each == found[0] for each in found[1:])
