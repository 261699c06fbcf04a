"""Conflict between random batches: do averages over several samples still conflict?

With averaging weights A (m, S) and the samples' Gram matrix G, the Gram matrix of the batches is A G A^T.

Axes: n units of a chunk, S samples, D draws, m batches of a draw.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from analyzers.conflict.grams import LARGEST
from analyzers.conflict.rates import clipped
from analyzers.conflict.rows import BatchRow
from analyzers.conflict.sample_pairs import FloatArray, Pairs, packed

DRAWS = 4


Members = npt.NDArray[np.int64]


def partitions(order: Sequence[int], seed: int) -> dict[int, Members]:
    """Draw partitions into batches of 2, 4, 8, ... up to half of the samples, from their ``order`` and the seed.

    Returns the members (D, m, size) by size; a remainder of the samples is left out.
    """
    number, random = len(order), np.random.default_rng(seed)
    draws, size = {}, 2
    while 2 * size <= number:
        permutations = [np.asarray(order, np.int64)[random.permutation(number)] for _ in range(DRAWS)]
        draws[size] = np.stack([permutation[: number - number % size].reshape(-1, size) for permutation in permutations])
        size *= 2
    return draws


@dataclass(slots=True)
class BatchSums:
    """Sums over units and draws, by batch size: pairs of batches that count, pairs in conflict, and cosines."""

    partitions: Mapping[int, Members]
    gamma: float
    sums: dict[int, FloatArray] = field(default_factory=dict)

    def add(self, gram: Tensor) -> None:
        """Add the Gram matrices of some units, (n, S, S)."""
        for size, members in self.partitions.items():
            self.sums[size] = self.sums.get(size, np.zeros(3)) + _pair_sums(gram, members, self.gamma)

    def rows(self, whole: FloatArray) -> tuple[BatchRow, ...]:
        """Return the rates by batch size. whole: (S, S), the Gram matrix of the whole model's gradients."""
        of_whole = BatchSums(self.partitions, self.gamma)
        trace = np.trace(whole)
        of_whole.add(torch.from_numpy(whole * (4.0**LARGEST / trace) if trace > 0 else whole)[None])
        rows = []
        for size in self.partitions:
            conflict, cosine = _means(self.sums.get(size))
            whole_conflict, whole_cosine = _means(of_whole.sums.get(size))
            rows.append(
                BatchRow(
                    batch_size=size,
                    batches=len(whole) // size,
                    draws=DRAWS,
                    conflict_rate=conflict,
                    mean_cosine=cosine,
                    whole_conflict_rate=whole_conflict,
                    whole_mean_cosine=whole_cosine,
                )
            )
        return tuple(rows)


def _pair_sums(gram: Tensor, members: Members, gamma: float) -> FloatArray:
    """Return the contribution of units (n, S, S) to the sums of one batch size, members (D, m, size)."""
    samples, (number, batches, size) = gram.shape[-1], members.shape
    averages = np.zeros((number, batches, samples))
    np.put_along_axis(averages, members, 1 / size, axis=2)
    weights = torch.from_numpy(averages).to(gram)
    half = (gram @ weights.flatten(0, 1).t()).view(-1, samples, number, batches).permute(0, 2, 1, 3)
    pairs = Pairs(packed((weights @ half).flatten(0, 1)), batches)
    by_pair = torch.stack([pairs.valid, pairs.below(gamma).sum(1), pairs.cosines.nansum(1)])
    sums: FloatArray = by_pair.sum(1, dtype=torch.float64).cpu().numpy()
    return sums


def _means(sums: FloatArray | None) -> tuple[float | None, float | None]:
    if sums is None or not sums[0] > 0:
        return None, None
    return float(sums[1] / sums[0]), clipped(float(sums[2] / sums[0]))
