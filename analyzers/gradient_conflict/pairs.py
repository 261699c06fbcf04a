"""Cosines and norms of each pair of samples from the Gram matrices of units, summed over the units: every rate is computed from these sums.

Axes: n units of a chunk, S samples.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Matrix = npt.NDArray[np.float64]

# Norms below 2^-50 (of gradients as `scaling` scales them) have squares near or below the smallest normal float32: they count as zero.
SMALLEST_SQUARE = 2.0**-100


class Pairs:
    """The pairs of samples in the units of a chunk. gram: (n, S, S), symmetric.

    A norm counts if it is above ``epsilon`` and at least ``floor``, a pair if both of its norms do.
    """

    def __init__(self, gram: Tensor, floor: float = 0.0, epsilon: float = 0.0) -> None:
        most = torch.finfo(gram.dtype).max
        self.gram, self.floor, self.epsilon = gram, min(floor, most), min(epsilon, most)

    @cached_property
    def squares(self) -> Tensor:
        """(n, S)."""
        return self.gram.diagonal(dim1=1, dim2=2)

    @cached_property
    def norms(self) -> Tensor:
        """(n, S)."""
        return self.squares.clamp(min=0).sqrt()

    @cached_property
    def counted(self) -> Tensor:
        """(n, S): whether a sample has a norm that counts."""
        return (self.squares > SMALLEST_SQUARE) & (self.norms >= self.floor) & (self.norms > self.epsilon)

    def of_all(self) -> "Pairs":
        """The pairs of all norms above 0."""
        return Pairs(self.gram) if self.floor or self.epsilon else self

    @cached_property
    def _inverse(self) -> Tensor:
        return torch.where(self.counted, 1 / self.norms.where(self.counted, 1), 0)

    @cached_property
    def valid(self) -> Tensor:
        """(S, S): in how many units each pair counts."""
        counted = self.counted.to(self.gram.dtype)
        return counted.t() @ counted

    @cached_property
    def cosines(self) -> Tensor:
        """(n, S, S); 0 where a pair does not count."""
        return (self.gram * self._inverse[:, :, None]).mul_(self._inverse[:, None, :])

    def below(self, threshold: float) -> Tensor:
        """(n, S, S): 1 where two samples' pair counts and has cos < threshold."""
        found = self._less(threshold)
        if threshold > 0:  # else neither a missing cosine, which is 0, nor that of a sample with itself is below it
            found *= self.counted[:, :, None] & self.counted[:, None, :]
            found.diagonal(dim1=1, dim2=2).zero_()
        return found

    def count_below(self, threshold: float) -> Tensor:
        """(S, S): in how many units `below` is 1; means nothing on the diagonal."""
        found = self._less(threshold).sum(0)
        return found - (len(self.gram) - self.valid) if threshold > 0 else found

    def _less(self, threshold: float) -> Tensor:
        return torch.lt(self.cosines, threshold, out=torch.empty_like(self.cosines))

    @cached_property
    def similarity(self) -> Tensor:
        """(n, S, S): 2|g||h| / (|g|^2 + |h|^2); 0 where a pair does not count."""
        norms, squares = self.norms * self.counted, self.squares.where(self.counted, 1)
        return (norms[:, :, None] * (2 * norms)[:, None, :]).div_(squares[:, :, None] + squares[:, None, :])


@dataclass(frozen=True, slots=True)
class Thresholds:
    """gamma: a pair conflicts below it; tau: how far a cosine may be off."""

    gamma: float
    tau: float

    @property
    def low(self) -> float:
        """A cosine below it conflicts for certain."""
        return self.gamma - self.tau

    @property
    def high(self) -> float:
        """A cosine not below it certainly does not conflict."""
        return self.gamma + self.tau


@dataclass(frozen=True, eq=False, slots=True)
class PairSums:
    """Sums over units, (S, S) each, symmetric. units: how many. gram: of the Gram matrices.

    valid: units in which the pair counts; of those below, below_low, below_high: with a cosine below gamma, gamma - tau, gamma + tau;
    cosine, similarity: sums. zeros: units and samples without a gradient. Whatever floor and epsilon are: valid_of_all: units in which both
    gradients are above 0; historic: of those with cos < 0; similarity_of_all: sum over all units.
    """

    units: int
    zeros: int
    gram: Matrix
    valid: Matrix
    below: Matrix
    below_low: Matrix
    below_high: Matrix
    cosine: Matrix
    similarity: Matrix
    valid_of_all: Matrix
    historic: Matrix
    similarity_of_all: Matrix

    @classmethod
    def of(cls, pairs: Pairs, thresholds: Thresholds, exponent: int = 0) -> Self:
        """The sums of one chunk, of gradients times 2^exponent."""
        every = pairs.of_all()
        below, similarity = pairs.count_below(thresholds.gamma), pairs.similarity.sum(0)
        sums = (
            pairs.gram.sum(0),
            pairs.valid,
            below,
            pairs.count_below(thresholds.low),
            pairs.count_below(thresholds.high),
            pairs.cosines.sum(0),
            similarity,
            every.valid,
            below if thresholds.gamma == 0 and every is pairs else every.count_below(0.0),
            similarity if every is pairs else every.similarity.sum(0),
        )
        lower = np.tril(torch.stack(sums).double().cpu().numpy())  # two halves of a sum may differ in their last bits
        gram, *others = lower + np.tril(lower, -1).swapaxes(1, 2)
        return cls(len(pairs.gram), int((~every.counted).sum()), gram * 4.0**-exponent, *others)

    def __add__(self, other: Self) -> Self:
        return type(self)(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))
