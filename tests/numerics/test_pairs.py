"""The counting of pairs against an oracle in float64."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from analyzers.numerics.pairs import THROUGH
from tests.numerics.pair_counts import Codes, Counting, Dtypes, PairCounts, Tables, counted
from tests.numerics.pair_oracle import Expected, expected
from tests.numerics.values import TORCH, all_patterns, decoded, hostile32

ETA = 1e-3
BF16: Dtypes = ("BF16", "BF16")
SPECIAL16 = [0, 0x8000, 1, 0x8001, 0x7F, 0x80, 0x3F80, 0xBF80, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7F81, 0x7FC0, 0xFFFF]


def check(base: Codes, tuned: Codes, dtypes: Dtypes, eta: float = ETA) -> None:
    """All that is told of the pairs, in the order given and in the other."""
    truth = expected(base, tuned, dtypes, eta)
    for one, other, names in ((base, tuned, dtypes), (tuned, base, dtypes[::-1])):
        counts, tables = counted(one, other, names, eta)
        check_counts(counts, truth, decoded(one, names[0])[np.isfinite(decoded(base, dtypes[0])) & np.isfinite(decoded(tuned, dtypes[1]))])
        check_tables(tables, truth)


def whole(counts: PairCounts) -> tuple[float, ...]:
    return counts.values, counts.changed, counts.probe, counts.differ, counts.nonfinite, counts.absolute_max


def check_counts(counts: PairCounts, truth: Expected, base: NDArray[np.float64]) -> None:
    assert whole(counts) == whole(truth.counts)
    assert np.sqrt(counts.update_square) == pytest.approx(norm(truth.absolute), rel=1e-12)
    assert np.sqrt(counts.base_square) == pytest.approx(norm(base), rel=1e-12)


def norm(values: NDArray[np.float64]) -> float:
    largest = float(np.abs(values).max(initial=0.0)) or 1.0
    shift = int(np.frexp(largest)[1])
    with np.errstate(over="ignore"):
        return float(np.ldexp(np.sqrt(np.square(np.ldexp(values, -shift)).sum()), shift))


def check_tables(tables: Tables, truth: Expected) -> None:
    """Counts exactly; sums to float64 precision; quantiles to the width of a bin."""
    assert (tables.absolute.zeros, tables.nonfinite) == (int((truth.absolute == 0).sum()), truth.counts.nonfinite)
    check_steps(tables, truth)
    for changed_only in (False, True):
        chosen = truth.moved if changed_only else np.ones(truth.steps.size, dtype=np.bool_)
        for exponent in (-8, -7, -1, -20):
            assert tables.relative.below(exponent, changed_only) == int((truth.relative[chosen] < 2.0**exponent).sum())
        for updates, values in ((tables.absolute, truth.absolute[chosen]), (tables.relative, truth.relative[chosen])):
            summary = updates.summary(changed_only)
            assert summary.count == values.size
            if values.size:
                scale = max(float(values.max()), 1e-300)
                assert summary.max == values.max()
                assert summary.mean is not None and summary.mean / scale == pytest.approx(float((values / scale).mean()), rel=1e-9)
                assert summary.std is not None and summary.std / scale == pytest.approx(float((values / scale).std()), rel=1e-9, abs=1e-8)
                quantiles = np.quantile(values, (0, 0.25, 0.5, 0.75, 0.9, 0.99))
                found = [summary.min, summary.p25, summary.p50, summary.p75, summary.p90, summary.p99]
                np.testing.assert_allclose(np.array(found, dtype=np.float64), quantiles, rtol=0.005)
            bins = updates.histogram()
            assert sum(bin_.changed if changed_only else bin_.count for bin_ in bins) == int((values != 0).sum())


def check_steps(tables: Tables, truth: Expected) -> None:
    bins = tables.ulp_bins()
    assert [count for *_, count in bins] == [int(((truth.steps >= low) & (truth.steps <= high)).sum()) for low, high, _ in bins]
    assert sum(count for *_, count in bins) == truth.steps.size


def same_tables(one: Tables, other: Tables) -> None:
    """The same counts to the last one; sums may be added in another order."""
    assert (one.relative.zeros, one.nonfinite) == (other.relative.zeros, other.nonfinite)
    assert one.ulp_bins() == other.ulp_bins()
    for ours, theirs in ((one.absolute, other.absolute), (one.relative, other.relative)):
        assert ours.histogram(128) == theirs.histogram(128)
        for changed_only in (False, True):
            a, b = (updates.summary(changed_only) for updates in (ours, theirs))
            assert (a.count, a.p25, a.p50, a.p75, a.p90, a.p99, a.max) == (b.count, b.p25, b.p50, b.p75, b.p90, b.p99, b.max)
            assert a.mean == (b.mean if b.mean is None else pytest.approx(b.mean, rel=1e-12))


def bf16(values: NDArray[np.floating[Any]]) -> NDArray[np.uint16]:
    return torch.from_numpy(values.astype(np.float32)).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)


def weights(count: int, seed: int = 0) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal(count) * 0.02).astype(np.float32)


def stepped(codes: NDArray[np.uint16], share: float, steps: list[int], seed: int = 1) -> NDArray[np.uint16]:
    rng = np.random.default_rng(seed)
    moves = np.where(rng.random(codes.size) < share, rng.choice(steps, codes.size), 0)
    return (codes + moves).astype(np.uint16)


@pytest.mark.parametrize("eta", [1e-3, 2.0**-8, 0.01, 0.5])
def test_every_pattern_of_bf16_beside_selected_ones(eta: float) -> None:
    every = all_patterns("BF16")
    rng = np.random.default_rng(2)
    steps = rng.choice([0, 1, -2, 7, 8, 0x8000], every.size)
    special = rng.choice(np.array(SPECIAL16, dtype=np.uint16), every.size)
    both = every + steps, np.where(every % 4 == 0, special, rng.permutation(every))
    check(np.tile(every, 2), np.concatenate(both).astype(np.uint16), BF16, eta)


@pytest.mark.parametrize("share", [0.0, 0.0005, 0.01, 0.12, 0.3, 1.0])
def test_updates_of_bf16_of_every_density(share: float) -> None:
    base = bf16(weights(70_001))
    check(base, stepped(base, share, [-1, 1, 1, 2, -3, 7, -8, 60]), BF16)


@pytest.mark.parametrize("eta", [1e-3, 1e-6, 1e-12, 0.5])
def test_fp32_of_every_kind_beside_each_other(eta: float) -> None:
    codes = hostile32()
    rng = np.random.default_rng(3)
    near = (codes + rng.integers(-3, 4, codes.size)).astype(np.uint32)
    base = np.concatenate([codes, codes, codes])
    check(base, np.concatenate([rng.permutation(codes), near, codes ^ np.uint32(1 << 31)]), ("F32", "F32"), eta)


def boundaries() -> NDArray[np.uint32]:
    """Midpoints between neighbouring values of bf16 in many binades, with their neighbours in fp32, of both signs."""
    high = np.concatenate([np.arange(8), np.arange(0x7F7C, 0x7F80), np.arange(0x40, 0x7F80, 0x155), np.arange(0x3F7D, 0x3F83)])
    middle = (high.astype(np.uint32) << np.uint32(16)) | np.uint32(0x8000)
    near = np.concatenate([middle + np.uint32(step) for step in (0, 1, 2)] + [middle - np.uint32(step) for step in (1, 2, 0x8000)])
    return np.concatenate([near, near | np.uint32(1 << 31)])


def test_fp32_around_every_boundary_of_rounding_to_bf16() -> None:
    codes = boundaries()
    for shift in (1, 2, codes.size // 6, codes.size // 3, codes.size // 2):
        check(codes, np.roll(codes, shift), ("F32", "F32"))
    check(codes, bf16(codes.view(np.float32)), ("F32", "BF16"))


@pytest.mark.parametrize("share", [0.001, 0.2, 0.9])
def test_updates_of_fp32_of_every_density(share: float) -> None:
    values = weights(40_001)
    rng = np.random.default_rng(4)
    tuned = np.where(rng.random(values.size) < share, values * (1 + 1e-3 * rng.standard_normal(values.size)), values).astype(np.float32)
    tuned[:50], values[50:90] = 0.0, 1e-12
    for eta in (1e-3, 1e-6):
        check(values.view(np.uint32), tuned.view(np.uint32), ("F32", "F32"), eta)
    check(values.view(np.uint32), bf16(tuned), ("F32", "BF16"))
    check(bf16(values), tuned.view(np.uint32), ("BF16", "F32"))


@pytest.mark.parametrize("kind", ["none", "subnormal", "overflow", "infinite", "nan", "equal"])
def test_blocks_of_many_updates_with_one_that_is_odd(kind: str) -> None:
    """After blocks where all pairs differ the next ones are counted at once: what cannot be counted so is taken back, to the last cell."""
    values = weights(20 * 1024 + 70)
    tuned = (values * np.float32(1.001)).astype(np.float32)
    for block in (5, 6, 11, 20):
        at = slice(1024 * block + 7, 1024 * block + 9)
        values[at] = {"subnormal": 1.5e-38, "overflow": 3e38, "infinite": np.inf, "nan": 1.0}.get(kind, values[at])
        tuned[at] = {"subnormal": 1.5001e-38, "overflow": -3e38, "infinite": 1.0, "nan": np.nan}.get(kind, tuned[at])
    if kind == "equal":  # and few that differ after many
        tuned[3 * 1024 : 9 * 1024] = values[3 * 1024 : 9 * 1024]
        tuned[4 * 1024] = 7.0
    check(values.view(np.uint32), tuned.view(np.uint32), ("F32", "F32"))
    check(values.view(np.uint32), bf16(tuned), ("F32", "BF16"))


@pytest.mark.parametrize("dtype", [dtype for dtype in TORCH if dtype.startswith("F8")])
def test_every_pair_of_fp8_patterns(dtype: str) -> None:
    every = all_patterns(dtype)
    check(np.repeat(every, 256), np.tile(every, 256), (dtype, dtype))


def test_narrow_formats_beside_wider_ones() -> None:
    every = all_patterns("F16")
    with np.errstate(invalid="ignore"):
        wide = every.view(np.float16).astype(np.float32)
        moved = wide * np.float32(1.001)
    check(every, moved.view(np.uint32), ("F16", "F32"))
    check(every, bf16(wide), ("F16", "BF16"))
    check(every, np.roll(every, 3), ("F16", "F16"), 0.01)
    check(all_patterns("F8_E5M2"), bf16(np.arange(256) / 7), ("F8_E5M2", "BF16"))


PAIRS: dict[str, Callable[[], tuple[Codes, Codes, Dtypes]]] = {
    "bf16": lambda: (bf16(weights(60_000)), stepped(bf16(weights(60_000)), 0.2, [-1, 1, 2, 9, 300]), BF16),
    "sparse": lambda: (bf16(weights(60_000)), stepped(bf16(weights(60_000)), 0.004, [-1, 1, 2, 9, 300]), BF16),
    "fp32": lambda: (weights(60_000).view(np.uint32), (weights(60_000) + weights(60_000, 9) / 1000).view(np.uint32), ("F32", "F32")),
    "mixed": lambda: (weights(60_000).view(np.uint32), bf16(weights(60_000) + weights(60_000, 9) / 1000), ("F32", "BF16")),
    "hostile": lambda: (np.tile(hostile32(), 8), np.tile(hostile32()[::-1].copy(), 8), ("F32", "F32")),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_chunks_of_any_size_in_any_order_count_the_same(name: str) -> None:
    base, tuned, dtypes = PAIRS[name]()
    once, tables = counted(base, tuned, dtypes)
    rng = np.random.default_rng(8)
    for count in (2, 7, 40):
        cuts = [0, *sorted(rng.integers(0, base.size, count).tolist()), base.size]
        parts = [slice(*ends) for ends in itertools.pairwise(cuts)]
        counting = Counting(dtypes, ETA)
        for i in rng.permutation(len(parts)).tolist():
            counting.add(base[parts[i]], tuned[parts[i]])
        assert whole(counting.counts) == whole(once)
        assert counting.counts.update_square == pytest.approx(once.update_square, rel=1e-12)
        same_tables(counting.tables, tables)


def test_nothing_to_count() -> None:
    counts, tables = counted(np.zeros(0, dtype=np.uint16), np.zeros(0, dtype=np.uint16), BF16)
    assert counts == PairCounts() and tables.ulp_bins() == []
    assert tables.absolute.summary(changed_only=False).mean is None and tables.absolute.energy((0.01, 0.5)) == [None, None]
    assert tables.relative.histogram() == [] and tables.relative.below(-8, changed_only=False) == 0


def test_products_digests_and_the_first_difference() -> None:
    """The same values in another order have one digest; other values, or another multiplicity, have not."""
    base = bf16(weights(20_000))
    tuned = base.copy()
    tuned[5_000:] = np.random.default_rng(1).permutation(base[5_000:])
    counting = Counting(BF16, ETA)
    counting.add(base, tuned)
    w, v = decoded(base, "BF16"), decoded(tuned, "BF16")
    assert counting.products == pytest.approx([w @ w, w @ v, v @ v], rel=1e-12)
    assert counting.sums.digests[0] == counting.sums.digests[1]
    assert counting.sums.first == int(np.flatnonzero(base != tuned)[0])
    tuned[-1] += 1
    other = Counting(BF16, ETA)
    other.add(base, tuned)
    assert other.sums.digests[0] != other.sums.digests[1]


@pytest.mark.parametrize("through", ["", "F16", "BF16"])
def test_casts(through: str) -> None:
    """Of fp32, through a narrower format and back: as torch rounds."""
    names = {"": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    values = weights(9_000) * np.float32(1e-3)
    copy = torch.from_numpy(values).to(names[through]).to(torch.float32).numpy()
    counting = Counting(("F32", "F32"), ETA)
    counting.add(copy.view(np.uint32), values.view(np.uint32))
    whole_way = dict(zip(THROUGH, (counting.sums.casts == values.size).tolist(), strict=True))
    assert whole_way[through] and (not through or not whole_way[""])
