"""Chooses the blocks of a sample that are searched for grids first; the others are searched only if one of these is on a grid."""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from analyzers.checkpoints import Span
from analyzers.grids.search import may_be_on_grid

# Blocks of a checkpoint that are searched before one is found on a grid: a few of each kind of tensor
FIRST_BLOCKS = 64


def first_blocks(spans: Sequence[Span], seed: int) -> tuple[list[Span], list[Span]]:
    """Split the blocks of a sample into those to search first and the others.

    The kinds of tensors take turns, and the tensors of a kind do, with one block each time, in random order. A kind has one dtype, and one
    name but for numbers, as of layers and experts. Deterministic for the same arguments.
    """
    drawn = [i for i in np.random.default_rng(seed).permutation(len(spans)).tolist() if may_be_on_grid(spans[i].tensor)]
    drawn = _in_turn(drawn, [span.tensor.name for span in spans])
    drawn = _in_turn(drawn, [f"{span.tensor.dtype} {re.sub(r'[0-9]+', '', span.tensor.name)}" for span in spans])
    first = set(drawn[:FIRST_BLOCKS])
    return [spans[i] for i in sorted(first)], [span for i, span in enumerate(spans) if i not in first]


def _in_turn(numbers: Sequence[int], names: Sequence[str]) -> list[int]:
    """Sort numbers such that one of each name comes first, then the second of each, otherwise in their order."""
    seen, turns = Counter[str](), {}
    for number in numbers:
        turns[number] = seen[names[number]]
        seen[names[number]] += 1
    return sorted(numbers, key=turns.__getitem__)
