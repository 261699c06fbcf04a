"""Samples that run together: the cheapest of all partitions, by trying them."""

from collections.abc import Iterator, Sequence
from math import inf

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from analyzers.language_models.length_groups import grouped, length_groups, padded, tokens
from tests.language_models.architectures import ARCHITECTURES, build


def partitions(numbers: Sequence[int]) -> Iterator[list[list[int]]]:
    """All partitions into groups."""
    if not numbers:
        yield []
        return
    first, *others = numbers
    for rest in partitions(others):
        yield [[first], *rest]
        for index, group in enumerate(rest):
            yield [*rest[:index], [first, *group], *rest[index + 1 :]]


def cost(found: list[list[int]], lengths: Sequence[int], more: float) -> float:
    return sum(more + len(group) * max(lengths[number] for number in group) for group in found)


@pytest.mark.exhaustive
@given(st.lists(st.integers(2, 40), min_size=1, max_size=7), st.floats(0, 60))
def test_no_other_groups_take_less(lengths: list[int], more: float) -> None:
    found = grouped(lengths, more)
    assert sorted(number for group in found for number in group) == list(range(len(lengths)))
    assert all(group == sorted(group) for group in found)
    longest = [length for _, length in padded(found, lengths)]
    assert longest == sorted(longest, reverse=True)
    least = min((cost(each, lengths, more) for each in partitions(range(len(lengths)))), default=inf)
    assert cost(found, lengths, more) == pytest.approx(least)


def test_samples_of_one_length_run_together_in_their_order() -> None:
    assert grouped([9] * 200, 1e-9) == [list(range(200))]
    assert grouped([2, 1000, 3, 990], 64) == [[1, 3], [0, 2]]
    assert (padded([[1, 3], [0, 2]], [2, 1000, 3, 990]), tokens([[1, 3], [0, 2]], [2, 1000, 3, 990])) == ([(2, 1000), (2, 3)], 2006)


def test_what_a_group_takes_depends_on_the_model_and_the_device() -> None:
    """Small layers and fast devices spend their time on beginning; experts are all read, though each token goes to few."""
    lengths = [400] * 8 + [200] * 8
    small = build(ARCHITECTURES["llama"], dtype=torch.float32)
    assert len(length_groups(small, lengths, "cuda")) == 1
    with torch.device("meta"):
        large = build(ARCHITECTURES["llama"], dtype=torch.float32, hidden_size=2048, intermediate_size=8192)
        experts = build(ARCHITECTURES["mixtral"], dtype=torch.float32, hidden_size=2048, intermediate_size=8192, num_local_experts=64)
    assert len(length_groups(large, lengths, "cpu")) == 2
    assert len(length_groups(experts, lengths, "cpu")) == 1
