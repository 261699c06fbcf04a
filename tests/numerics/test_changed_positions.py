"""Where pairs changed, against masks made one value at a time by torch."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from analyzers.numerics import ChangedPositions, changed_positions, intersections
from tests.numerics.pair_counts import Counting
from tests.numerics.values import TORCH, decoded

Codes = NDArray[Any]
Dtypes = tuple[str, str]


def changed(base: Codes, tuned: Codes, dtypes: Dtypes) -> NDArray[np.bool_]:
    """By torch's own rounding to bf16."""
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
    if dtype == "F32":
        return values.astype(np.float32).view(np.uint32)
    return torch.from_numpy(values).to(TORCH[dtype]).view(torch.int16).numpy().view(np.uint16)


def mask_of(base: Codes, tuned: Codes, dtypes: Dtypes, *, tables: bool = True) -> NDArray[np.bool_]:
    mask = np.ones(base.size, dtype=np.bool_)  # nothing may be left of what was there before
    counting = Counting(dtypes, 1e-3, sized=tables)
    counting.add(base, tuned, mask)
    assert counting.counts.changed == np.count_nonzero(mask) or not base.size
    return mask


CASES: list[Dtypes] = [("BF16", "BF16"), ("F32", "F32"), ("F32", "BF16"), ("BF16", "F32"), ("F16", "F16"), ("F16", "BF16")]


@pytest.mark.parametrize("dtypes", CASES, ids="-".join)
@pytest.mark.parametrize("share", [0.0003, 0.02])
def test_rows_and_columns_from_chunks_of_any_size_in_any_order(dtypes: Dtypes, share: float) -> None:
    rng = np.random.default_rng(1)
    for rows, columns in ((300, 100), (7, 4_001), (1, 9_000), (5_000, 1), (200, 192), (90, 64)):
        base, tuned = pairs(dtypes, rows * columns, share)
        matrix = changed(base, tuned, dtypes).reshape(rows, columns)
        for cuts in (0, 3, 30):
            ends = np.unique([0, *rng.integers(0, base.size, cuts).tolist(), base.size])
            threads = [ChangedPositions(rows, columns) for _ in range(2)]
            for i in rng.permutation(ends.size - 1).tolist():
                part = slice(ends[i], ends[i + 1])
                threads[i % 2].update(mask_of(base[part], tuned[part], dtypes), int(ends[i]))
            threads[0].merge(threads[1])
            assert (threads[0].changed_rows, threads[0].changed_columns) == (int(matrix.any(axis=1).sum()), int(matrix.any(axis=0).sum()))


def test_columns_are_given_up_where_there_are_very_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changed_positions, "MOST_COLUMNS", 99)
    found, other = (ChangedPositions(2, 100) for _ in range(2))
    for each, start, count in ((found, 0, 150), (other, 150, 50)):
        each.update(mask_of(np.zeros(count, np.uint16), np.full(count, 0x3F80, np.uint16), ("BF16", "BF16")), start)
    found.merge(other)
    assert (found.changed_rows, found.changed_columns) == (2, None)


@pytest.mark.parametrize("dtypes", CASES, ids="-".join)
def test_masks_are_what_torch_finds(dtypes: Dtypes) -> None:
    for count, share in product((1, 7, 8, 63, 64, 65, 70_000, 70_016), (0.001, 0.05, 0.3, 1.0)):
        base, tuned = pairs(dtypes, max(count, 30), share, count)
        base, tuned = base[:count], tuned[:count]
        expected = changed(base, tuned, dtypes)
        for tables in (True, False):
            mask = mask_of(base, tuned, dtypes, tables=tables)
            np.testing.assert_array_equal(mask, expected)


@pytest.mark.parametrize("size", [1, 8, 603])
def test_intersections_count_shared_elements(size: int) -> None:
    masks = list(np.random.default_rng(3).random((5, size)) < 0.5)
    masks[3] = np.zeros(size, dtype=np.bool_)
    expected = [[sum(x and y for x, y in zip(a, b, strict=True)) for b in masks] for a in masks]
    np.testing.assert_array_equal(intersections(masks), expected)
