"""The plan of quick mode: within its budget, disjoint, aligned, repeatable, and giving every element the same chance."""

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzers.checkpoints.reading.sample import RUN, SMALLEST_BLOCK, STRATUM_BLOCKS, Sample, plan_sample
from analyzers.checkpoints.tensor import DTYPE_BITS, Tensor
from analyzers.core.errors import InvalidRequest


def tensor(shape: tuple[int, ...], dtype: str = "BF16", role: str = "mlp") -> Tensor:
    return Tensor("weight", dtype, shape, 0, 0, prod(shape) * DTYPE_BITS[dtype] // 8, role, None, False)


def bytes_read(sample: Sample, tensors: list[Tensor]) -> int:
    return sum(block.count * tensors[block.tensor].itemsize for block in sample.blocks)


SIZES = st.one_of(st.integers(0, 5), st.integers(0, 300), st.integers(0, 70_000))
TENSORS = st.lists(
    st.builds(
        tensor,
        st.one_of(st.tuples(), st.tuples(SIZES), st.tuples(SIZES, SIZES), st.tuples(st.integers(0, 9), SIZES, SIZES)),
        st.sampled_from(["F8_E4M3", "BF16", "F32", "F64"]),
        st.sampled_from(["attention", "mlp", "expert", "norm", "embedding"]),
    ),
    max_size=60,
)
BUDGETS = st.one_of(st.integers(1, 20), st.integers(1, 10_000), st.integers(1, 10**8))
REQUESTS = st.one_of(st.integers(1, 40), st.integers(1, 2_000))


@given(TENSORS, BUDGETS, REQUESTS, st.integers(0, 2**32 - 1))
def test_every_plan_keeps_its_promises(tensors: list[Tensor], budget: int, requests: int, seed: int) -> None:
    sample = plan_sample(tensors, budget, requests, seed)
    again = plan_sample(tensors, budget, requests, seed)
    assert again.blocks == sample.blocks
    assert again.strata.tolist() == sample.strata.tolist()
    assert len(sample.blocks) <= requests
    assert bytes_read(sample, tensors) <= budget
    end, previous = 0, -1
    for block in sample.blocks:
        read = tensors[block.tensor]
        assert block.count >= 1
        assert block.tensor >= previous
        assert block.start >= (end if block.tensor == previous else 0)
        end, previous = block.start + block.count, block.tensor
        assert end <= read.elements
        if block.count == read.elements:
            continue
        row = read.shape[-1]
        if block.start % row == 0 and block.count % row == 0:
            continue
        assert row * read.itemsize > min(SMALLEST_BLOCK, budget * 3 // 4), "a row that fits is read whole"
        assert block.start // row == (end - 1) // row, "a part of a row stays inside it"
        assert block.start % row % RUN == 0 or budget * 3 // 4 < RUN * read.itemsize
    assert len(sample.strata) == len(tensors)
    assert sample.population.tolist() == [
        sum(tensor.elements for tensor, stratum in zip(tensors, sample.strata, strict=True) if stratum == number)
        for number in range(len(sample.population))
    ]


@given(TENSORS, st.integers(0, 2**32 - 1))
def test_what_fits_is_read_whole(tensors: list[Tensor], seed: int) -> None:
    occupied = [number for number, tensor in enumerate(tensors) if tensor.elements]
    sample = plan_sample(tensors, max(1, sum(tensor.nbytes for tensor in tensors)), max(1, len(occupied)), seed)
    assert [block.tensor for block in sample.blocks] == occupied
    assert all(block.count == tensors[block.tensor].elements and block.start == 0 for block in sample.blocks)


@given(TENSORS, BUDGETS, REQUESTS, st.integers(0, 99))
def test_no_stratum_rests_on_too_few_blocks(tensors: list[Tensor], budget: int, requests: int, seed: int) -> None:
    sample = plan_sample(tensors, budget, requests, seed)
    strata = np.array([sample.strata[block.tensor] for block in sample.blocks], np.int64)
    blocks = np.bincount(strata, minlength=len(sample.population))
    read = np.zeros(len(sample.population), np.int64)
    np.add.at(read, strata, [block.count for block in sample.blocks])
    short = (blocks < STRATUM_BLOCKS) & (read < sample.population)
    # Only where few blocks could be drawn at all are strata pooled, vectors and the rest at most apart.
    assert short.sum() <= 2 or budget < 8
    assert not short.any() or min(budget // SMALLEST_BLOCK, requests) < 4 * STRATUM_BLOCKS or len(sample.blocks) <= requests // 4


def test_the_default_situation_uses_its_requests() -> None:
    layer = [tensor((8192, 8192), role="attention")] * 4 + [tensor((28672, 8192))] * 2 + [tensor((8192, 28672))]
    tensors = ([*layer, tensor((8192,), role="norm"), tensor((8192,), role="norm")]) * 80
    sample = plan_sample(tensors, 64_000_000, 1_940, 0)
    assert 1_930 <= len(sample.blocks) <= 1_940
    assert 50_000_000 <= bytes_read(sample, tensors) <= 64_000_000
    assert sum(block.count == tensors[block.tensor].elements for block in sample.blocks) == 160, (
        "all norms, and nothing else, are read whole"
    )
    assert {block.tensor for block in sample.blocks} == set(range(720)), "with more blocks than tensors none is left out"


def test_too_many_vectors_take_a_quarter_and_not_more() -> None:
    tensors = [tensor((4096, 4096), role="expert"), tensor((4096,), role="expert")] * 5_000 + [tensor((4096,), role="norm")] * 50
    sample = plan_sample(tensors, 64_000_000, 2_000, 0)
    vectors = [block for block in sample.blocks if len(tensors[block.tensor].shape) == 1]
    assert len(sample.blocks) >= 1_990
    assert 490 <= len(vectors) <= 500
    assert sum(tensors[block.tensor].role == "norm" for block in vectors) == 50
    assert all(block.count == tensors[block.tensor].elements for block in vectors)
    assert len({block.tensor for block in vectors}) == len(vectors)


def test_the_smallest_budgets_read_single_elements() -> None:
    for budget, expected in ((1, 0), (2, 1), (3, 1), (100, 50)):
        assert sum(block.count for block in plan_sample([tensor((4096, 4096))], budget, 10, 0).blocks) == expected
    assert plan_sample([tensor((0, 7)), tensor((0, 2**64 - 1))], 1, 1, 0).blocks == []
    for budget, requests in ((0, 5), (5, 0)):
        with pytest.raises(InvalidRequest, match="at least 1 byte and 1 request"):
            plan_sample([tensor((3, 3))], budget, requests, 0)


def test_every_element_has_the_same_chance() -> None:
    # Rows of three lengths, cells of unequal size at the edges, tensors smaller than a cell: all in one stratum.
    tensors = [tensor((37, 300)), tensor((5, 5000)), tensor((3, 40)), tensor((11, 1, 700))]
    rounds = 1_000
    hits = [np.zeros(t.elements) for t in tensors]
    for seed in range(rounds):
        for block in plan_sample(tensors, 10 * SMALLEST_BLOCK, 7, seed).blocks:
            hits[block.tensor][block.start : block.start + block.count] += 1
    chances = np.concatenate(hits) / rounds
    expected = chances.mean()
    assert 0.2 < expected < 0.6
    assert np.abs(chances - expected).max() < 5 * np.sqrt(expected * (1 - expected) / rounds)
