"""Patterns that lie anywhere in memory, as weights of old pickles lie in their file: what is counted is the same."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from analyzers.numerics import Accumulator, Loops, PairCounter, PairTables, kernels, plain, room_for_changed, torch_kernels
from analyzers.numerics.runs import RUN_COUNTS
from tests.numerics.values import hostile32, hostile64

Codes = NDArray[Any]
BOTH = pytest.mark.parametrize("loops", [kernels, plain], ids=["compiled", "numpy"])
ROW = 192
FIELDS = {"BF16": (7, 8), "F16": (10, 5), "F32": (23, 8), "F64": (52, 11)}


def codes_of(dtype: str, seed: int) -> Codes:
    """48 rows of normal values between hostile ones."""
    values = np.random.default_rng(seed).normal(scale=0.02, size=48 * ROW)
    hostile = hostile64() if dtype == "F64" else hostile32()
    if dtype == "F64":
        codes: Codes = values.view(np.uint64)
    elif dtype == "F16":
        codes = values.astype(np.float16).view(np.uint16)
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
    there: Codes = memory[start : start + codes.nbytes].view(codes.dtype)
    assert there.flags.aligned == (by % codes.itemsize == 0)
    return there


def whole(codes: Codes, dtype: str, loops: Loops) -> list[Any]:
    accumulator = Accumulator(dtype, "cpu", loops)
    accumulator.update(codes)
    runs = np.zeros(RUN_COUNTS, dtype=np.int64)
    loops.runs_of_few_significands(codes, ROW, 0, *FIELDS[dtype], 1, runs)
    rows: Any = loops.exact_rows32(codes, ROW, 8, False) if dtype == "F32" else loops.exact_rows16(codes, ROW, 8) if dtype == "F16" else ()
    return [accumulator.take(), runs.tolist(), rows]


@BOTH
@pytest.mark.parametrize("by", [1, 2, 3, 5, 61])
@pytest.mark.parametrize("dtype", FIELDS)
def test_one_checkpoint(loops: Loops, dtype: str, by: int) -> None:
    codes = codes_of(dtype, 1)
    assert whole(moved(codes, by), dtype, loops) == whole(codes, dtype, loops)


@pytest.mark.parametrize("dtype", FIELDS)
def test_by_torch(dtype: str) -> None:
    codes = codes_of(dtype, 2)
    here, there = (torch_kernels.count(each, dtype, "cpu") for each in (codes, moved(codes, 3)))
    assert np.array_equal(here[0], there[0]) and np.array_equal(here[1:], there[1:], equal_nan=True)


@BOTH
@pytest.mark.parametrize("change", [lambda codes: codes + (codes % 64 == 0), lambda codes: codes + 1], ids=["few", "all"])
@pytest.mark.parametrize("dtypes", [("BF16", "BF16"), ("F32", "BF16"), ("F32", "F32"), ("F16", "F16"), ("F64", "F32")])
def test_pairs(loops: Loops, dtypes: tuple[str, str], change: Callable[[Codes], Codes]) -> None:
    base, tuned = codes_of(dtypes[0], 3), codes_of(dtypes[1], 3)
    tuned = change(tuned).astype(tuned.dtype)
    found = []
    for shifts in ((0, 0), (1, 3), (0, 5), (61, 0)):
        one, other = (moved(codes, by) for codes, by in zip((base, tuned), shifts, strict=True))
        tables = PairTables()
        counter = PairCounter(*dtypes, 1e-3, tables, loops=loops)
        changed = room_for_changed(one.size)
        counter.update(one, other, changed)
        found.append((counter.take(), tables, changed.tolist()))
    assert all(each == found[0] for each in found[1:])
