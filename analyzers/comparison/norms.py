"""Reads norms before the matrices behind them, whose channels calibrated methods scale by the inverse of the factors of the norm.

What a matrix lacks can only be measured once the factors of its channels are known.
"""

from collections.abc import Collection, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints import Chunk, Group, Span, Tensor, whole_spans
from analyzers.numerics.pairs import codes_of

Floats = NDArray[np.float64]
Sides = tuple[int, int]

# Layouts of methods that scale the channels between a norm and a matrix.
_LAYOUTS = ("AWQ", "compressed-tensors")
# Most values of a norm, and of all norms, that are held.
_LONGEST, _MOST = 1 << 20, 1 << 23
# Least factor of a channel, which float32 resolves.
_TINY = 1e-6


def scales_channels(x: Tensor | None) -> bool:
    """Return whether a tensor was quantized by a program that may scale its channels."""
    return x is not None and x.stored is not None and x.stored.layout in _LAYOUTS


class Norms:
    """The factors that the norms of copies lack, by layer.

    copies: sides with quantized tensors, each with one that may be their source; layers: whose norms are read. spans: to read; add what
    `read` returns for each.
    """

    def __init__(self, groups: Sequence[Group], copies: Sequence[Sides], layers: Collection[int | None]) -> None:
        self._copies = [(i, j) for i, j in copies if any(scales_channels(group.sides[i]) for group in groups)]
        self._numbers = {group.base.name: number for number, group in enumerate(groups)}
        self._factors: dict[tuple[Sides, int | None], list[tuple[int, Floats]]] = {}
        chosen, left = [], _MOST
        for group in groups:
            base, held = group.base, any(group.sides[i] is not None and group.sides[j] is not None for i, j in self._copies)
            if held and base.role == "norm" and len(base.shape) == 1 and base.layer in layers and base.elements <= min(left, _LONGEST):
                chosen.append(group.sides)
                left -= base.elements
        self.spans = whole_spans(chosen)

    def read(self, span: Span, chunks: Iterator[Chunk]) -> list[list[Floats]]:
        """Return the values of each side, in parts."""
        parts: list[list[Floats]] = [[] for _ in span.sides]
        for chunk in chunks:
            for side, codes, found in zip(span.sides, chunk.sides, parts, strict=True):
                if side is not None and codes is not None:
                    found.append(codes_of(codes, side.counted_as, False).values().astype(np.float64))
        return parts

    def add(self, span: Span, parts: list[list[Floats]]) -> None:
        """Add the values of a norm."""
        values = [np.concatenate([np.empty(0), *found]) for found in parts]
        for i, j in self._copies:
            if span.sides[i] is not None and span.sides[j] is not None and values[i].size == values[j].size:
                found = self._factors.setdefault(((i, j), span.tensor.layer), [])
                found += [(self._numbers[span.tensor.name], factors) for factors in _factors(values[i], values[j])]

    def numbers(self, *sides: int) -> set[int]:
        """Return the groups of the norms of two sides that differ."""
        return {number for (pair, _), norms in self._factors.items() if pair == sides for number, _ in norms}

    def of(self, sides: Sides, matrix: Tensor) -> list[tuple[int | None, Floats]]:
        """Return the factors by which the columns of a matrix may be scaled: none, and those of each norm of its layer.

        With the number of the norm's group; 0 where a factor is unknown.
        """
        norms, channels = self._factors.get((sides, matrix.layer), []), matrix.shape[-1]
        return [(None, np.ones(channels)), *((number, factors) for number, factors in norms if factors.size == channels)]

    def behind(self, sides: Sides, matrix: Tensor, column: int, x: Floats, p: Floats) -> Floats:
        """Return the factors with which rows (n, columns) of a matrix, from a column on, are nearest to multiples of the source's."""
        part = slice(column, column + x.shape[1])

        def explained(factors: Floats) -> float:
            scaled = factors[part] * p
            square = (scaled * scaled).sum(axis=1)
            return float(np.nansum((x * scaled).sum(axis=1) ** 2 / np.where(square > 0, square, np.nan)))

        best = max((factors for _, factors in self.of(sides, matrix)), key=explained)
        return np.ascontiguousarray(best[part])


def _factors(x: Floats, p: Floats) -> Iterator[Floats]:
    """Yield the factors that a norm has lost, if it has changed: its weights, or these plus 1, are the source's by them."""
    if np.array_equal(x, p):
        return
    for lost, source in ((x, p), (1 + x, 1 + p)):
        with np.errstate(all="ignore"):
            factors = np.where(np.abs(lost) > _TINY * np.abs(source), source / lost, 0.0)
        yield np.where(np.isfinite(factors) & (np.abs(factors) > _TINY), factors, 0.0)
