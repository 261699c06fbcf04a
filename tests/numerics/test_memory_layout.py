"""Patterns at any address, contiguous or not, writable or not: what is counted is the same."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from analyzers.numerics import Accumulator
from tests.numerics.pair_counts import Counting
from tests.numerics.test_histogram import close
from tests.numerics.values import hostile32

Codes = NDArray[Any]
ROW = 192
DTYPES = ("BF16", "F16", "F32")


def codes_of(dtype: str, seed: int) -> Codes:
    """48 rows of normal values between hostile ones."""
    values = np.random.default_rng(seed).normal(scale=0.02, size=48 * ROW)
    hostile = hostile32()
    if dtype == "F16":
        codes: Codes = values.astype(np.float16).view(np.uint16)
    else:
        codes = values.astype(np.float32).view(np.uint32)
    some = hostile[:: -(-hostile.size // (8 * ROW))]
    codes[: some.size] = some.astype(codes.dtype)
    return (codes >> np.uint32(16)).astype(np.uint16) if dtype == "BF16" else codes


def moved(codes: Codes, by: int) -> Codes:
    """The same ``by`` bytes behind a multiple of 64."""
    memory = np.zeros(codes.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + by
    memory[start : start + codes.nbytes] = codes.view(np.uint8)
    shifted: Codes = memory[start : start + codes.nbytes].view(codes.dtype)
    assert shifted.flags.aligned == (by % codes.itemsize == 0)
    return shifted


def read_only(codes: Codes) -> Codes:
    return np.frombuffer(codes.tobytes(), dtype=codes.dtype)


@pytest.mark.parametrize("by", [1, 2, 3, 5, 61])
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_checkpoint(dtype: str, by: int) -> None:
    codes = codes_of(dtype, 1)
    found = []
    for each in (codes, moved(codes, by), read_only(codes), np.repeat(codes, 2)[::2]):
        accumulator = Accumulator(dtype)
        accumulator.update(each)
        found.append(accumulator.take())
    assert found[0].values == codes.size
    for other in found[1:]:
        close(other, found[0])


@pytest.mark.parametrize("change", [lambda codes: codes + (codes % 64 == 0), lambda codes: codes + 1], ids=["few", "all"])
@pytest.mark.parametrize("dtypes", [("BF16", "BF16"), ("F32", "BF16"), ("F32", "F32"), ("F16", "F16")])
def test_pairs(dtypes: tuple[str, str], change: Callable[[Codes], Codes]) -> None:
    base, tuned = codes_of(dtypes[0], 3), codes_of(dtypes[1], 3)
    tuned = change(tuned).astype(tuned.dtype)
    found = []
    for one, other in ((base, tuned), (moved(base, 1), moved(tuned, 3)), (read_only(base), moved(tuned, 5)), (moved(base, 61), tuned)):
        changed = np.empty(one.size, dtype=np.bool_)
        counting = Counting(dtypes, 1e-3)
        counting.add(one, other, changed)
        found.append((counting.counts, counting.bins.absolute.tolist(), changed.tolist()))
    assert all(each == found[0] for each in found[1:])
