"""The counting of pairs against an oracle in float64."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from analyzers.numerics.pairs import THROUGH
from tests.cases import few
from tests.numerics.pair_counts import Codes, Counting, Dtypes, counted
from tests.numerics.values import all_patterns, bf16, decoded, hostile32, tensor
from tests.sparsity.oracle import Floats, changed, expected

Pair = tuple[Codes, Codes, Dtypes]
BF16, F32, MIXED = ("BF16", "BF16"), ("F32", "F32"), ("F32", "BF16")


def weights(count: int, seed: int = 0) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal(count) * 0.02).astype(np.float32)


def stepped(share: float, steps: list[int], count: int = 30_001) -> Pair:
    """Move a share of bf16 weights by some of these steps."""
    codes, rng = bf16(weights(count)), np.random.default_rng(1)
    moves = np.where(rng.random(codes.size) < share, rng.choice(steps, codes.size), 0)
    return codes, (codes + moves).astype(np.uint16), BF16


def moved(share: float, dtypes: Dtypes = F32) -> Pair:
    """Move a share of fp32 weights by a thousandth, some from or to zero."""
    values, rng = weights(30_001), np.random.default_rng(4)
    tuned = np.where(rng.random(values.size) < share, values * (1 + 1e-3 * rng.standard_normal(values.size)), values).astype(np.float32)
    tuned[:50], values[50:90] = 0.0, 1e-12
    return values.view(np.uint32), bf16(tuned) if dtypes == MIXED else tuned.view(np.uint32), dtypes


def every_bf16() -> Pair:
    """Every pattern beside neighbours, its negative, and signed zeros, subnormals, infinities and NaN."""
    every, rng = all_patterns("BF16"), np.random.default_rng(2)
    special = np.array([0, 0x8000, 1, 0x8001, 0x7F, 0x80, 0x3F80, 0xBF80, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7F81, 0x7FC0, 0xFFFF])
    near = every + rng.choice([0, 1, -2, 7, 8, 0x8000], every.size)
    far = np.where(every % 4 == 0, rng.choice(special, every.size), rng.permutation(every))
    return np.tile(every, 2), np.concatenate([near, far]).astype(np.uint16), BF16


def hostile() -> Pair:
    codes, rng = hostile32(), np.random.default_rng(3)
    near = (codes + rng.integers(-3, 4, codes.size)).astype(np.uint32)
    return np.tile(codes, 3), np.concatenate([rng.permutation(codes), near, codes ^ np.uint32(1 << 31)]), F32


def boundaries(dtypes: Dtypes = F32) -> Pair:
    """Midpoints between neighbouring values of bf16 in many binades, with their neighbours in fp32, of both signs."""
    high = np.concatenate([np.arange(8), np.arange(0x7F7C, 0x7F80), np.arange(0x40, 0x7F80, 0x155), np.arange(0x3F7D, 0x3F83)])
    middle = (high.astype(np.uint32) << np.uint32(16)) | np.uint32(0x8000)
    near = np.concatenate([middle + np.uint32(step) for step in (0, 1, 2)] + [middle - np.uint32(step) for step in (1, 2, 0x8000)])
    codes = np.concatenate([near, near | np.uint32(1 << 31)])
    if dtypes == MIXED:
        return codes, bf16(codes.view(np.float32)), dtypes
    shifts = (1, 2, codes.size // 6, codes.size // 3, codes.size // 2)
    return np.tile(codes, len(shifts)), np.concatenate([np.roll(codes, shift) for shift in shifts]), dtypes


def every_fp8(dtype: str) -> Pair:
    every = all_patterns(dtype)
    return np.repeat(every, 256), np.tile(every, 256), (dtype, dtype)


PAIRS: dict[str, Callable[[], Pair]] = {
    "bf16": lambda: stepped(0.2, [-1, 1, 2, 9, 300]),
    "sparse": lambda: stepped(0.004, [-1, 1, 2, 9, 300], 60_000),
    "fp32": lambda: moved(0.9),
    "mixed": lambda: moved(0.2, MIXED),
    "hostile": hostile,
    "none": lambda: stepped(0.0, [1]),
    "all": lambda: stepped(1.0, [-1, 1, 1, 2, -3, 7, -8, 60]),
    "few fp32": lambda: moved(0.001),
    "every bf16": every_bf16,
    "boundaries": boundaries,
    "mixed boundaries": lambda: boundaries(MIXED),
    "fp16": lambda: (all_patterns("F16"), np.roll(all_patterns("F16"), 3), ("F16", "F16")),
    **{dtype: lambda dtype=dtype: every_fp8(dtype) for dtype in ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")},  # type: ignore[misc]
}
SOME = dict(itertools.islice(PAIRS.items(), 5))


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("eta", few([1e-3, 2.0**-8, 1e-12, 0.5], {0, 1}))
def test_counts_and_tables(name: str, eta: float) -> None:
    """Counts exactly, sums to float64 precision, quantiles to the width of a bin; in the order given and in the other."""
    base, tuned, dtypes = PAIRS[name]()
    for one, other, (left, right) in ((base, tuned, dtypes), (tuned, base, dtypes[::-1])):
        truth, found = expected(tensor(one, left), tensor(other, right), eta), Counting((left, right), eta)
        mask = np.ones(one.size, np.bool_)  # nothing may be left of what was there before
        found.add(one, other, mask)
        np.testing.assert_array_equal(mask, changed(decoded(one, left), decoded(other, right)))
        largest = float(truth.absolute.max(initial=0.0))
        assert found.whole == (truth.values, truth.changed, truth.probe, truth.differ, truth.nonfinite, largest)
        assert np.sqrt(found.squares) == pytest.approx(np.sqrt([truth.update_square, truth.base_square]), rel=1e-12)
        assert found.zeros == int((truth.absolute == 0).sum())
        steps = [int(((truth.steps >= low) & (truth.steps <= high)).sum()) for low, high, _ in found.ulp_bins]
        assert [count for *_, count in found.ulp_bins] == steps and sum(steps) == truth.steps.size
        for updates, values in zip(found.distributions, (truth.absolute, truth.relative), strict=True):
            for changed_only in (False, True):
                _like(updates.summary(changed_only), values[truth.is_changed] if changed_only else values)


def _like(summary: dict[str, float | None], values: Floats) -> None:
    if values.size == 0:
        assert set(summary.values()) == {None}
        return
    scale = max(float(values.max()), 1e-300)
    assert summary["max"] == values.max()
    assert summary["mean"] == pytest.approx(float((values / scale).mean()) * scale, rel=1e-9, abs=0)
    quantiles = np.quantile(values, (0, 0.25, 0.5, 0.75, 0.9, 0.99))
    found = np.array([summary[name] for name in ("min", "p25", "p50", "p75", "p90", "p99")], np.float64)
    np.testing.assert_allclose(found, quantiles, rtol=0.005)


def same(one: Counting, other: Counting) -> None:
    """The same counts to the last one; sums may be added in another order."""
    assert (one.whole, one.zeros, one.ulp_bins) == (other.whole, other.zeros, other.ulp_bins)
    assert one.squares == pytest.approx(other.squares, rel=1e-12)
    for ours, theirs in zip(one.distributions, other.distributions, strict=True):
        assert ours.histogram(128) == theirs.histogram(128)
        values, others = (np.array([*each.summary(True).values(), *each.summary(False).values()], np.float64) for each in (ours, theirs))
        np.testing.assert_allclose(values, others, rtol=1e-12)


@pytest.mark.parametrize("name", SOME)
def test_chunks_of_any_size_in_any_order_count_the_same(name: str) -> None:
    base, tuned, dtypes = PAIRS[name]()
    once, rng = counted(base, tuned, dtypes), np.random.default_rng(8)
    for count in (2, 40):
        cuts = [0, *sorted(rng.integers(0, base.size, count).tolist()), base.size]
        counting, parts = Counting(dtypes), [slice(*ends) for ends in itertools.pairwise(cuts)]
        for i in rng.permutation(len(parts)).tolist():
            counting.add(base[parts[i]], tuned[parts[i]])
        same(counting, once)


def test_nothing_to_count() -> None:
    found = counted(np.zeros(0, dtype=np.uint16), np.zeros(0, dtype=np.uint16), BF16)
    absolute, relative = found.distributions
    assert not any(found.whole) and found.ulp_bins == []
    assert absolute.energy((0.01, 0.5)) == [None, None]
    assert relative.histogram() == [] and relative.below(-8, changed_only=False) == 0


def test_products_digests_and_the_first_difference() -> None:
    """The same values in another order have one digest; other values, or another multiplicity, have not."""
    base = bf16(weights(20_000))
    tuned = base.copy()
    tuned[5_000:] = np.random.default_rng(1).permutation(base[5_000:])
    counting = counted(base, tuned, BF16)
    w, v = decoded(base, "BF16"), decoded(tuned, "BF16")
    assert counting.products == pytest.approx([w @ w, w @ v, v @ v], rel=1e-12)
    assert counting.sums.digests[0] == counting.sums.digests[1]
    assert counting.sums.first == int(np.flatnonzero(base != tuned)[0])
    tuned[-1] += 1
    digests = counted(base, tuned, BF16).sums.digests
    assert digests[0] != digests[1]
    pair = np.array([1, 4], np.uint16), np.array([2, 3], np.uint16)  # of one sum
    assert np.ptp(counted(*pair, BF16).sums.digests) != 0


@pytest.mark.parametrize("through", ["", "F16", "BF16"])
def test_casts(through: str) -> None:
    """Of fp32, through a narrower format and back: as torch rounds."""
    names = {"": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    values = weights(9_000) * np.float32(1e-3)
    copy = torch.from_numpy(values).to(names[through]).to(torch.float32).numpy()
    casts = counted(copy.view(np.uint32), values.view(np.uint32), F32).sums.casts
    whole_way = dict(zip(THROUGH, (casts[:-1] == values.size).tolist(), strict=True))
    assert whole_way[through] and (not through or not whole_way[""])


def test_pairs_that_are_roundings_of_one_value() -> None:
    """To bf16 and to fp16, subnormals too. None is, two steps of bf16 further, among values whose steps in fp16 are smaller."""
    values = torch.from_numpy(weights(9_000) * np.float32(10) ** np.random.default_rng(1).integers(-6, 3, 9_000).astype(np.float32))
    wide, narrow = (values.to(to).view(torch.int16).numpy().view(np.uint16) for to in (torch.bfloat16, torch.float16))
    assert counted(wide, narrow, ("BF16", "F16")).sums.casts[-1] == values.numel()
    normal = np.abs(values.numpy()) > 2.0**-14
    assert counted(wide[normal] + np.uint16(2), narrow[normal], ("BF16", "F16")).sums.casts[-1] == 0
