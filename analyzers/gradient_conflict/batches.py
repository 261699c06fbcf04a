"""Batch by batch: do averages over random batches still pull a unit apart? With averages A (m, S), the Gram of batches is A G A^T.

Axes: n units of a chunk, S samples, D draws, m batches of a draw.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from analyzers.gradient_conflict.jackknife import FloatArray
from analyzers.gradient_conflict.pairs import Pairs
from analyzers.gradient_conflict.rates import clipped
from analyzers.gradient_conflict.scaling import LARGEST
from analyzers.gradient_conflict.summaries import BatchRow

DRAWS = 4


@dataclass(frozen=True, eq=False, slots=True)
class Partition:
    """One draw: the samples in batches of one size, (m, S) weights of 1/size; what is left over is in none."""

    size: int
    averages: FloatArray


def partitions(order: Sequence[int], seed: int) -> list[Partition]:
    """Draws for sizes 2, 4, 8, ... up to half of the samples. ``order`` of the samples decides with the seed, their numbers do not."""
    number, random = len(order), np.random.default_rng(seed)
    found, size = [], 2
    while 2 * size <= number:
        for _ in range(DRAWS):
            members = np.asarray(order)[random.permutation(number)][: number - number % size].reshape(-1, size)
            averages = np.zeros((len(members), number))
            np.put_along_axis(averages, members, 1 / size, axis=1)
            found.append(Partition(size, averages))
        size *= 2
    return found


@dataclass(slots=True)
class BatchSums:
    """Over units and draws, by size: pairs of batches that count, those in conflict, and the sum of their cosines."""

    partitions: Sequence[Partition]
    gamma: float
    sums: dict[int, FloatArray] = field(default_factory=dict)

    def add(self, gram: Tensor) -> None:
        """Take in units (n, S, S)."""
        self.take(self.of(gram))

    def take(self, sums: Mapping[int, FloatArray]) -> None:
        """Take in what `of` found."""
        for size, found in sums.items():
            self.sums[size] = self.sums.get(size, np.zeros(3)) + found

    def of(self, gram: Tensor) -> dict[int, FloatArray]:
        """What units (n, S, S) bring to ``sums``."""
        samples, sums = gram.shape[-1], {}
        for size, draws in self._averages().items():
            averages = draws.to(gram)  # (D, m, S)
            number, batches = averages.shape[:2]
            half = (gram @ averages.flatten(0, 1).t()).view(-1, samples, number, batches).permute(0, 2, 1, 3)
            pairs = Pairs((averages @ half).flatten(0, 1))
            off = ~torch.eye(batches, dtype=torch.bool, device=gram.device)
            found = (pairs.valid, pairs.count_below(self.gamma), pairs.cosines.sum(0))
            sums[size] = torch.stack([(matrix * off).sum(dtype=torch.float64) for matrix in found]).cpu().numpy()
        return sums

    def _averages(self) -> dict[int, Tensor]:
        """By size, (D, m, S) of its draws."""
        sizes = dict.fromkeys(each.size for each in self.partitions)
        return {size: torch.from_numpy(np.stack([each.averages for each in self.partitions if each.size == size])) for size in sizes}

    def rows(self, whole: FloatArray) -> tuple[BatchRow, ...]:
        """The curve. whole: (S, S), the Gram matrix of the whole model's gradients."""
        of_whole = BatchSums(self.partitions, self.gamma)
        size = np.trace(whole)
        of_whole.add(torch.from_numpy(whole * (4.0**LARGEST / size) if size > 0 else whole)[None])
        rows = []
        for size in dict.fromkeys(each.size for each in self.partitions):
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


def _means(sums: FloatArray | None) -> tuple[float | None, float | None]:
    if sums is None or not sums[0] > 0:
        return None, None
    return float(sums[1] / sums[0]), clipped(float(sums[2] / sums[0]))
