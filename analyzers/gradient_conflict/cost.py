"""The cost of Gram matrices on each route, computed before anything runs, to choose the cheaper one.

Axes: T tokens, S samples, F units, d width of a block's inputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Literal

Route = Literal["direct", "tokens"]

# One elementwise addition or product takes about as long as this many in a matrix product: it is bound by memory.
ELEMENTWISE = 16


@dataclass(frozen=True, slots=True)
class Cost:
    """flops: multiplications and additions in matrix products; elementwise: outside of them; bytes: read and written by the products."""

    flops: int = 0
    elementwise: int = 0
    bytes: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.flops + other.flops, self.elementwise + other.elementwise, self.bytes + other.bytes)

    @property
    def weight(self) -> int:
        """By which two routes are compared."""
        return self.flops + ELEMENTWISE * self.elementwise


@dataclass(frozen=True, slots=True)
class Shape:
    """Blocks of the same units. counts: (S,), tokens of each sample; widths: d of each block; inputs: the number of each block's input:
    blocks with the same input share the products between tokens. itemsize: bytes of a number.
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
    """Per-sample gradients, then all S^2 products between them. chunks: units at a time."""
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
def tokens(shape: Shape, chunks: tuple[int, ...]) -> Cost:
    """Products between tokens, once for each input, then weighted by each unit's lefts at the two tokens."""
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
    """(S,): tokens of each sample and all that follow it."""
    return list(accumulate(reversed(counts)))[::-1]
