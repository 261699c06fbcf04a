"""Shares and their intervals: exact where all is known, right about what was not seen, and covering what they claim."""

import json
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from analyzers.numerics.intervals import Blocks, Interval
from tests.numerics.coverage import MODELS, PROPERTIES, RESULTS, SEEDS, coverage


class ShareBlocks(NamedTuple):
    """Arguments of `Blocks` and `Blocks.shares`."""

    stratum: NDArray[np.int64]
    elements: NDArray[np.int64]
    tested: NDArray[np.int64]
    positive: NDArray[np.int64]
    population: NDArray[np.int64]


def share_interval(blocks: ShareBlocks) -> Interval:
    """Return the interval of the share of values with a property."""
    return Blocks(blocks.stratum, blocks.elements, blocks.population).shares(blocks.tested, blocks.positive)


@st.composite
def share_blocks(draw: st.DrawFn) -> ShareBlocks:
    """Up to 40 blocks in up to 3 strata with 2 properties, the strata read in part, wholly or not at all."""
    strata = draw(st.integers(1, 3))
    number = draw(st.integers(0, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    stratum = rng.integers(0, strata, number)
    elements = rng.integers(1, draw(st.sampled_from([2, 50, 10**6])), number)
    tested = rng.integers(draw(st.booleans()) * elements[:, None], elements[:, None] + 1, (number, 2))
    positive = rng.binomial(tested, draw(st.sampled_from([0.0, 0.01, 0.5, 1.0])))
    positive = np.where(rng.random((number, 1)) < draw(st.sampled_from([0.0, 0.1])), tested, positive)
    read = np.bincount(stratum, elements, strata).astype(np.int64)
    return ShareBlocks(stratum, elements, tested, positive, read + rng.integers(0, 10**7, strata) * rng.integers(0, 2, strata))


def counts(positive: list[int], tested: int, population: int) -> ShareBlocks:
    """Blocks of ``tested`` elements each in one stratum, one property."""
    size = np.full(len(positive), tested)
    return ShareBlocks(np.zeros(len(positive), np.int64), size, size[:, None], np.array(positive)[:, None], np.array([population]))


@given(share_blocks())
def test_bounds_are_in_order_and_never_tighter_than_three_in_b(blocks: ShareBlocks) -> None:
    found = share_interval(blocks)
    nothing = blocks.tested.sum(axis=0) == 0
    for values in (found.estimate, found.low, found.high):
        assert (np.isnan(values) == nothing).all()
    ordered = (found.low >= 0) & (found.low <= found.estimate) & (found.estimate <= found.high) & (found.high <= 1)
    assert (ordered | nothing).all()
    read = np.bincount(blocks.stratum, blocks.elements, len(blocks.population))
    if len(blocks.population) == 1 and read[0] and not nothing.any():
        three = np.minimum(1, 3 * (1 - read[0] / blocks.population[0]) / (blocks.tested > 0).sum(axis=0))
        assert (found.high >= three - 1e-12).all()
        assert (found.low <= 1 - three + 1e-12).all()


@given(share_blocks())
def test_estimate_is_the_stratified_ratio(blocks: ShareBlocks) -> None:
    found = share_interval(blocks)
    for p in range(2):
        above, below = Fraction(0), Fraction(0)
        for s, population in enumerate(blocks.population.tolist()):
            read = int(blocks.elements[blocks.stratum == s].sum())
            if read:
                above += Fraction(population, read) * int(blocks.positive[blocks.stratum == s, p].sum())
                below += Fraction(population, read) * int(blocks.tested[blocks.stratum == s, p].sum())
        assert np.isnan(found.estimate[p]) if not below else found.estimate[p] == pytest.approx(float(above / below), abs=1e-12)


def test_everything_read_is_exact() -> None:
    found = share_interval(
        ShareBlocks(
            stratum=np.array([0, 0, 1]),
            elements=np.array([10, 30, 60]),
            tested=np.array([[10], [30], [60]]),
            positive=np.array([[1], [0], [2]]),
            population=np.array([40, 60]),
        )
    )
    assert found.low[0] == found.high[0] == found.estimate[0] == 0.03


def test_a_part_read_whole_adds_no_doubt() -> None:
    blocks = counts([0] * 100, 100, 10**6)
    census = ShareBlocks(
        np.append(blocks.stratum, 1),
        np.append(blocks.elements, 10**6),
        np.append(blocks.tested, [[10**6]], axis=0),
        np.append(blocks.positive, [[10**6]], axis=0),
        np.array([10**6, 10**6]),
    )
    found = share_interval(census)
    assert found.estimate[0] == found.low[0] == 0.5
    assert found.high[0] == pytest.approx(0.5 + 0.5 * 0.03 * 0.99)


@pytest.mark.parametrize("positive", [0, 1000])
def test_nothing_found_is_the_rule_of_three(positive: int) -> None:
    found = share_interval(counts([positive] * 300, 1000, 10**12))
    assert found.estimate[0] == positive / 1000
    assert found.high[0] - found.low[0] == pytest.approx(3 / 300, rel=1e-6)


def test_single_values_get_wilsons_interval() -> None:
    # 81 of 263: Wilson's interval with continuity correction, Newcombe (Statistics in Medicine 17, 1998), table I.
    found = share_interval(counts([1] * 81 + [0] * 182, 1, 10**12))
    assert (found.low[0], found.high[0]) == pytest.approx((0.2535, 0.3682), abs=1e-3)


def test_clusters_count_once() -> None:
    spread = share_interval(counts([1] * 1000, 1000, 10**12))
    clustered = share_interval(counts([1000] + [0] * 999, 1000, 10**12))
    assert spread.estimate[0] == clustered.estimate[0] == 0.001
    assert clustered.high[0] > 1.4 * spread.high[0]
    assert clustered.low[0] < 0.1 * spread.low[0]


def test_what_no_block_reached_may_be_anything() -> None:
    blocks = counts([0] * 1000, 1000, 3 * 10**9)
    found = share_interval(ShareBlocks(blocks.stratum, blocks.elements, blocks.tested, blocks.positive, np.array([3 * 10**9, 10**9])))
    assert found.high[0] == pytest.approx(0.25 + 0.75 * 0.003, rel=1e-3)


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    return coverage(SEEDS)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", PROPERTIES)
def test_intervals_hold_as_often_as_recorded_and_are_narrow(measured: dict[str, Any], model: str, name: str) -> None:
    recorded, now = json.loads(RESULTS.read_text())["models"][model][name], measured["models"][model][name]
    assert now["median_width"] < 0.004 + now["share"] and (now["covered_percent"] >= 90 or name not in list(PROPERTIES)[:4])
    assert recorded["covered_percent"] == pytest.approx(now["covered_percent"], abs=5)
    assert recorded["median_width"] == pytest.approx(now["median_width"], rel=0.2)


@pytest.mark.parametrize("positive", [0, 1])
def test_how_many_values_are_tested_is_in_doubt_too(positive: int) -> None:
    """A small tensor was read throughout; in the rest all values have the property or none, and how many are tested varies by block."""
    random, blocks, size, covered = np.random.default_rng(5), 512, 4096, 0
    tested = (size * random.random(blocks)).astype(np.int64)
    share = (tested.sum() * positive + size * (1 - positive)) / (tested.sum() + size)
    for _ in range(200):
        drawn = random.choice(blocks, 50, replace=False)
        found = share_interval(
            ShareBlocks(
                stratum=np.array([0, *[1] * 50]),
                elements=np.full(51, size),
                tested=np.array([size, *tested[drawn]])[:, None],
                positive=np.array([size * (1 - positive), *tested[drawn] * positive])[:, None],
                population=np.array([size, size * blocks]),
            )
        )
        assert found.low[0] < found.estimate[0] < found.high[0]
        covered += found.low[0] <= share <= found.high[0]
    assert covered >= 180
