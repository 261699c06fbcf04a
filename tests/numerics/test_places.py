"""Where pairs changed, by numpy and by compiled loops, against masks made one value at a time by torch."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from analyzers.numerics import (
    ChangedPlaces,
    Loops,
    PairCounter,
    PairTables,
    intersections,
    kernels,
    places,
    plain,
    plain_pairs,
    room_for_changed,
)
from tests.numerics.values import TORCH, all_patterns, decoded, hostile32, hostile64

Codes = NDArray[Any]
Dtypes = tuple[str, str]
BOTH = pytest.mark.parametrize("loops", [kernels, plain], ids=["compiled", "numpy"])


def changed(base: Codes, tuned: Codes, dtypes: Dtypes) -> NDArray[np.bool_]:
    """By torch's own rounding to bf16; of F64 only values that fp32 holds."""
    sides = []
    for codes, dtype in zip((base, tuned), dtypes, strict=True):
        with np.errstate(all="ignore"):
            sides.append(torch.from_numpy(decoded(codes, dtype).astype(np.float32)).to(torch.bfloat16))
    w, v = sides
    mask: NDArray[np.bool_] = ((w != v) & ~(torch.isnan(w) & torch.isnan(v))).numpy()
    return mask


def pairs(dtypes: Dtypes, count: int, share: float, seed: int = 0) -> tuple[Codes, Codes]:
    """Patterns of which about ``share`` changed; a few are no numbers, or zeros of either sign."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(count) * 0.02
    values[rng.integers(0, count, 20)] = rng.choice([0.0, -0.0, np.nan, np.inf, -np.inf], 20)
    moved = np.where(rng.random(count) < share, values * 1.02, values)
    moved[values == 0] *= -1
    return stored(values, dtypes[0]), stored(moved, dtypes[1])


def stored(values: NDArray[np.float64], dtype: str) -> Codes:
    if dtype == "F64":
        return values.view(np.uint64)
    if dtype == "F32":
        return values.astype(np.float32).view(np.uint32)
    return torch.from_numpy(values).to(TORCH[dtype]).view(torch.int16).numpy().view(np.uint16)


def mask_of(base: Codes, tuned: Codes, dtypes: Dtypes, loops: Loops, *, tables: bool = True) -> NDArray[np.uint64]:
    mask = room_for_changed(base.size)
    mask[:] = 0xDEAD_BEEF_DEAD_BEEF  # nothing may be left of what was there before
    counter = PairCounter(*dtypes, 1e-3, PairTables() if tables else None, loops=loops)
    counter.update(base, tuned, mask)
    assert counter.take().changed == int(np.bitwise_count(mask).sum()) or not base.size
    return mask


def flags_of(mask: NDArray[np.uint64], count: int) -> NDArray[np.bool_]:
    flags = np.unpackbits(mask.astype("<u8").view(np.uint8), bitorder="little").view(np.bool_)
    assert mask.dtype == np.uint64 and mask.size == -(-count // 64) and not flags[count:].any()
    return flags[:count]


CASES: list[Dtypes] = [("BF16", "BF16"), ("F32", "F32"), ("F32", "BF16"), ("BF16", "F32"), ("F16", "F16"), ("F16", "BF16"), ("F64", "F32")]


@BOTH
@pytest.mark.parametrize("dtypes", CASES, ids="-".join)
@pytest.mark.parametrize("share", [0.0003, 0.02])
def test_rows_and_columns_from_chunks_of_any_size_in_any_order(loops: Loops, dtypes: Dtypes, share: float) -> None:
    rng = np.random.default_rng(1)
    for rows, columns in ((300, 100), (7, 4_001), (1, 9_000), (5_000, 1), (200, 192), (90, 64)):
        base, tuned = pairs(dtypes, rows * columns, share)
        matrix = changed(base, tuned, dtypes).reshape(rows, columns)
        for cuts in (0, 3, 30):
            ends = np.unique([0, *rng.integers(0, base.size, cuts).tolist(), base.size])
            threads = [ChangedPlaces(rows, columns, loops) for _ in range(2)]
            for i in rng.permutation(ends.size - 1).tolist():
                part = slice(ends[i], ends[i + 1])
                threads[i % 2].update(mask_of(base[part], tuned[part], dtypes, loops), int(ends[i + 1] - ends[i]), int(ends[i]))
            threads[0].merge(threads[1])
            assert (threads[0].changed_rows, threads[0].changed_columns) == (matrix.any(axis=1).sum(), matrix.any(axis=0).sum())


@BOTH
def test_a_row_longer_than_a_piece(loops: Loops) -> None:
    base, tuned = pairs(("F32", "BF16"), 3 * 150_000, 0.0001)
    matrix = changed(base, tuned, ("F32", "BF16")).reshape(3, -1)
    found = ChangedPlaces(*matrix.shape, loops)
    found.update(mask_of(base, tuned, ("F32", "BF16"), loops), base.size, 0)
    assert (found.changed_rows, found.changed_columns) == (matrix.any(axis=1).sum(), matrix.any(axis=0).sum())


@BOTH
def test_rows_are_still_counted_where_all_columns_changed(loops: Loops) -> None:
    base = np.zeros((4, 2_000), dtype=np.uint16)
    tuned = base.copy()
    tuned[0], tuned[2, 1_999] = 0x3F80, 0x3F80
    found = ChangedPlaces(4, 2_000, loops)
    for row in range(4):
        found.update(mask_of(base[row], tuned[row], ("BF16", "BF16"), loops), 2_000, 2_000 * row)
    assert (found.changed_rows, found.changed_columns) == (2, 2_000)


def test_columns_are_given_up_where_there_are_very_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "MOST_COLUMNS", 99)
    found, other = (ChangedPlaces(2, 100, plain) for _ in range(2))
    for each, start, count in ((found, 0, 150), (other, 150, 50)):
        each.update(mask_of(np.zeros(count, np.uint16), np.full(count, 0x3F80, np.uint16), ("BF16", "BF16"), plain), count, start)
    found.merge(other)
    assert (found.changed_rows, found.changed_columns) == (2, None)


@BOTH
def test_bits_of_a_mask_at_any_place(loops: Loops) -> None:
    """Rows that begin anywhere in a mask, at any column, against the same bits one by one."""
    rng = np.random.default_rng(5)
    for _ in range(300):
        first, column, length, rows = (int(rng.integers(low, high)) for low, high in ((0, 200), (0, 200), (1, 200), (1, 6)))
        if rng.random() < 0.2:
            first, column, length = (64 * (each // 64 + 1) for each in (first, column, length))
        bits = rng.random(first + rows * length) < 0.02
        matrix = bits[first:].reshape(rows, length)
        before = rng.random(column + length + int(rng.integers(0, 99))) < 0.1
        columns, marked = plain_pairs.packed(before), rng.random(rows) < 0.1
        expected_rows, expected = marked | matrix.any(axis=1), before.copy()
        expected[column : column + length] |= matrix.any(axis=0)
        loops.mark_places(plain_pairs.packed(bits), first, column, length, columns, marked)
        np.testing.assert_array_equal(marked, expected_rows)
        np.testing.assert_array_equal(flags_of(columns, before.size), expected)


@BOTH
@pytest.mark.parametrize("dtypes", CASES, ids="-".join)
def test_masks_are_what_torch_finds(loops: Loops, dtypes: Dtypes) -> None:
    for count, share in product((1, 7, 8, 63, 64, 65, 70_000, 70_016), (0.001, 0.05, 0.3, 1.0)):
        base, tuned = pairs(dtypes, max(count, 30), share, count)
        base, tuned = base[:count], tuned[:count]
        expected = changed(base, tuned, dtypes)
        for tables in (True, False):
            mask = mask_of(base, tuned, dtypes, loops, tables=tables)
            np.testing.assert_array_equal(flags_of(mask, count), expected)


@BOTH
@pytest.mark.parametrize("share", [0.0, 0.01, 0.6])
def test_zeros_of_either_sign_are_no_change_among_any_others(loops: Loops, share: float) -> None:
    rng = np.random.default_rng(6)
    base, tuned = pairs(("BF16", "BF16"), 300_000, share)
    at = rng.random(base.size) < 0.4  # so many that they alone would make a block dense
    base[at], tuned[at] = 0x8000 * rng.integers(0, 2, at.sum()), 0x8000 * rng.integers(0, 2, at.sum())
    expected = changed(base, tuned, ("BF16", "BF16"))
    np.testing.assert_array_equal(flags_of(mask_of(base, tuned, ("BF16", "BF16"), loops), base.size), expected)


@BOTH
def test_masks_of_hostile_values(loops: Loops) -> None:
    rng = np.random.default_rng(2)
    every = all_patterns("BF16")
    with np.errstate(all="ignore"):
        wide = hostile64()[hostile64().view(np.float64) == hostile64().view(np.float64).astype(np.float32)]
    for codes, dtype in ((every, "BF16"), (hostile32(), "F32"), (wide, "F64")):
        for other in (rng.permutation(codes), codes ^ codes.dtype.type(1 << (8 * codes.itemsize - 1)), codes):
            mask = mask_of(codes, other, (dtype, dtype), loops)
            np.testing.assert_array_equal(flags_of(mask, codes.size), changed(codes, other, (dtype, dtype)))


@BOTH
@pytest.mark.parametrize("size", [1, 8, 9, 603])
def test_intersections_count_shared_bits(loops: Loops, size: int) -> None:
    masks = list(np.random.default_rng(3).integers(0, 1 << 64, (5, size), dtype=np.uint64))
    masks[3] = np.zeros(size, dtype=np.uint64)
    bits = [np.unpackbits(mask.view(np.uint8)) for mask in masks]
    expected = [[int((a & b).sum()) for b in bits] for a in bits]
    np.testing.assert_array_equal(intersections(masks, loops), expected)
