"""What Gram matrices cost on each route: counted before anything runs, so that the cheaper one is taken.

Axes: T tokens, S samples, F units, d width of a block's inputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Literal

Route = Literal["direct", "tokens"]

# One addition or product of an elementwise pass takes about as long as this many inside a matrix product: it waits for memory.
ELEMENTWISE = 16


@dataclass(frozen=True, slots=True)
class Cost:
    """flops: multiplications and additions of matrix products; elementwise: of everything else; bytes: read and written by the products."""

    flops: int = 0
    elementwise: int = 0
    bytes: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.flops + other.flops, self.elementwise + other.elementwise, self.bytes + other.bytes)

    @property
    def weight(self) -> int:
        """What two routes are compared by."""
        return self.flops + ELEMENTWISE * self.elementwise


@dataclass(frozen=True, slots=True)
class Shape:
    """Blocks that share their units. counts: (S,), tokens of each sample; widths: d of each block; inputs: which input each block has,
    by number: blocks with the same input share the products between tokens. itemsize: bytes of a number.
    """

    counts: tuple[int, ...]
    units: int
    widths: tuple[int, ...]
    inputs: tuple[int, ...]
    itemsize: int = 4


def product(rows: int, inner: int, columns: int, itemsize: int) -> Cost:
    """(rows, inner) @ (inner, columns)."""
    return Cost(2 * rows * inner * columns, 0, itemsize * (rows * inner + inner * columns + rows * columns))


@lru_cache(64)  # layers of a model are of the same shape
def direct(shape: Shape, chunks: tuple[int, ...]) -> Cost:
    """Per-sample gradients, then their products, all S^2 of them: a GPU makes all. chunks: units at a time."""
    samples, cost = len(shape.counts), Cost()
    for units in chunks:
        for width in shape.widths:
            for tokens in shape.counts:
                if tokens:
                    cost += product(units, tokens, width, shape.itemsize)
            once = product(samples, width, samples, shape.itemsize)
            cost += Cost(units * once.flops, 0, units * once.bytes)
    return cost


@lru_cache(64)
def in_cache(shape: Shape, together: int) -> Cost:
    """The same by a loop that makes so many units ``together``, and half of each matrix: gradients are neither written nor read."""
    samples, tokens, groups, cost = len(shape.counts), sum(shape.counts), -(-shape.units // together), Cost()
    for width in shape.widths:
        flops = shape.units * width * (2 * tokens + samples * (samples + 1))
        cost += Cost(flops, 0, shape.itemsize * (groups * tokens * width + shape.units * (tokens + samples**2)))
    return cost


@lru_cache(64)
def tokens(shape: Shape, chunks: tuple[int, ...]) -> Cost:
    """Products between tokens, once for each input, then weighed by what each unit got at the two tokens."""
    cost = Cost()
    for count, later in zip(shape.counts, remaining(shape.counts), strict=True):
        if not count:
            continue
        for width in dict(zip(shape.inputs, shape.widths, strict=True)).values():
            cost += product(later, width, count, shape.itemsize)
        for units in chunks:
            once = product(later, count, units, shape.itemsize) + Cost(0, 2 * later * units, 0)
            cost += Cost(len(shape.widths) * once.flops, len(shape.widths) * once.elementwise, len(shape.widths) * once.bytes)
    return cost


def remaining(counts: Sequence[int]) -> list[int]:
    """(S,): tokens of each sample and all behind it."""
    return list(accumulate(reversed(counts)))[::-1]
