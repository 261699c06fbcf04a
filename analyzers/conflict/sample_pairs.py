"""Cosines and norms of each pair of samples from the Gram matrices of units, and their sums over units, from which rates are computed.

Axes: n units of a chunk, S samples, P = S (S - 1) / 2 pairs (i, j), i < j, row by row. Units are the last axis, which sums run over.
"""

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

FloatArray = npt.NDArray[np.float64]

# Norms below 2^-50, after the scaling of `grams`, count as zero, because their squares are near or below the smallest normal float32.
SMALLEST_SQUARE = 2.0**-100


@cache
def pair_index(samples: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the two samples of every pair, (P,) each."""
    first, second = torch.triu_indices(samples, samples, 1, device=device)
    return first, second


def packed(gram: Tensor) -> Tensor:
    """Pack symmetric matrices (n, S, S) into (S + P, n): the diagonal, then the product of each pair."""
    first, second = pair_index(gram.shape[-1], gram.device)
    diagonal = torch.arange(gram.shape[-1], device=gram.device)
    return gram.permute(1, 2, 0)[torch.cat([diagonal, first]), torch.cat([diagonal, second])]


class Pairs:
    """The pairs of samples in the units of a chunk. gram: (S + P, n), as returned by `packed`.

    A gradient counts if its norm is above 0, a pair if both of its gradients count.
    """

    def __init__(self, gram: Tensor, samples: int) -> None:
        self.gram = gram
        self.squares, self.products = gram[:samples], gram[samples:]
        self._first, self._second = pair_index(samples, gram.device)

    @cached_property
    def norms(self) -> Tensor:
        """Gradient norms, (S, n)."""
        return self.squares.clamp(min=0).sqrt()

    @cached_property
    def counted(self) -> Tensor:
        """Whether the gradient of a sample in a unit counts: its norm is above rounding noise; (S, n)."""
        return self.squares > SMALLEST_SQUARE

    @cached_property
    def valid(self) -> Tensor:
        """Number of units in which each pair counts, (P,)."""
        counted = self.counted.to(self.gram.dtype)
        return (counted @ counted.t())[self._first, self._second]

    @cached_property
    def cosines(self) -> Tensor:
        """Cosines of the pairs, (P, n); NaN if a pair does not count."""
        inverse = torch.where(self.counted, 1 / self.norms, torch.nan)
        return inverse[self._first].mul_(self.products).mul_(inverse[self._second])

    def below(self, threshold: float) -> Tensor:
        """Return (P, n): 1 if a pair counts and has cos < threshold, else 0."""
        return torch.lt(self.cosines, threshold, out=torch.empty_like(self.cosines))

    @cached_property
    def similarity(self) -> Tensor:
        """Magnitude similarity 2|g||h| / (|g|^2 + |h|^2), (P, n); NaN if a pair does not count."""
        norms, squares = torch.where(self.counted, self.norms, torch.nan), self.squares
        return norms[self._first].mul_(2 * norms[self._second]).div_(squares[self._first].add_(squares[self._second]))


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds of a cosine. gamma: a pair conflicts below it; tau: bound on a cosine's numerical error."""

    gamma: float
    tau: float

    @property
    def low(self) -> float:
        """The threshold below which a pair conflicts for certain."""
        return self.gamma - self.tau

    @property
    def high(self) -> float:
        """The threshold at or above which a pair certainly does not conflict."""
        return self.gamma + self.tau


@dataclass(frozen=True, eq=False, slots=True)
class PairSums:
    """Sums over units, (P,) each unless stated otherwise. units: their number. gram: (S, S), symmetric, the sum of the Gram matrices.

    valid: units in which the pair counts; below, below_low, below_high: those with a cosine below gamma, gamma - tau, gamma + tau; cosine,
    similarity: sums over them. zeros: number of (unit, sample) without a gradient. negative: units with cos < 0, whatever gamma is.
    """

    units: int
    zeros: int
    gram: FloatArray
    valid: FloatArray
    below: FloatArray
    below_low: FloatArray
    below_high: FloatArray
    cosine: FloatArray
    similarity: FloatArray
    negative: FloatArray

    @classmethod
    def of(cls, pairs: Pairs, thresholds: Thresholds, exponent: int = 0) -> Self:
        """Compute the sums of one chunk, of gradients scaled by 2^exponent."""
        below = pairs.below(thresholds.gamma).sum(1)
        sums = (
            pairs.valid,
            below,
            pairs.below(thresholds.low).sum(1),
            pairs.below(thresholds.high).sum(1),
            pairs.cosines.nansum(1),
            pairs.similarity.nansum(1),
            below if thresholds.gamma == 0 else pairs.below(0.0).sum(1),
        )
        samples, units = pairs.squares.shape
        diagonal, products = pairs.gram.sum(1).double().cpu().numpy() * 4.0**-exponent, np.zeros((samples, samples))
        products[np.triu_indices(samples, 1)] = diagonal[samples:]
        gram = np.diag(diagonal[:samples]) + products + products.T
        return cls(units, int((~pairs.counted).sum()), gram, *torch.stack(sums).double().cpu().numpy())

    def __add__(self, other: Self) -> Self:
        return type(self)(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))
