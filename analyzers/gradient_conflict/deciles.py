"""Neuron by neuron: do the most active neurons also have the most conflict?

Activity is measured on one half of the samples, conflict between those of the other half, so that they share no noise.
Axes: F neurons, n of a chunk, S samples.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from analyzers.base import Interval
from analyzers.gradient_conflict.pairs import Pairs
from analyzers.gradient_conflict.rates import FEWEST, FloatArray, half_width
from analyzers.gradient_conflict.summaries import DecileRow

DECILES = 10


class Deciles:
    """Sums by decile, over one layer or expert after the other. order: of the samples; its first half ranks, its second is measured."""

    def __init__(self, order: Sequence[int], gamma: float) -> None:
        samples = len(order)
        self._gamma = gamma
        self._ranking = list(order[: samples // 2])
        self._measured = np.zeros(samples)
        self._measured[list(order[samples // 2 :])] = 1
        self._neurons = np.zeros(DECILES, dtype=np.int64)
        self._activity = np.zeros(DECILES)  # sum over neurons and tokens
        self._tokens = np.zeros(DECILES)  # how many those are
        self._sums = np.zeros((3, DECILES, samples))  # pairs, in conflict, similarity: each pair at both of its samples
        self._of_neuron = torch.empty(0)

    def begin(self, activity: Tensor, tokens: Tensor) -> None:
        """The next layer or expert: (S, F) sums of |activation| over the tokens of each sample, (S,) their number."""
        total = activity[self._ranking].sum(0).double()
        ranked = torch.argsort(total, stable=True)
        decile = torch.empty_like(ranked)
        decile[ranked] = torch.arange(len(ranked), device=ranked.device) * DECILES // max(1, len(ranked))
        self._of_neuron = torch.nn.functional.one_hot(decile, DECILES).to(activity.dtype)
        neurons = self._of_neuron.sum(0).cpu().numpy().round().astype(np.int64)
        self._neurons += neurons
        self._activity += (total @ self._of_neuron.double()).cpu().numpy()
        self._tokens += neurons * float(tokens[self._ranking].sum())

    def add(self, units: slice, pairs: Pairs) -> None:
        """Add a chunk of its neurons."""
        sums = _sums_of_samples(pairs, self._measured, self._gamma)
        self._sums += (self._of_neuron[units].to(sums.dtype).t() @ sums).double().cpu().numpy()

    def rows(self) -> tuple[DecileRow, ...]:
        """From the least active decile to the most active."""
        rows = []
        for decile in range(DECILES):
            pairs, below, similarity = self._sums[:, decile]
            total = pairs.sum() / 2
            rows.append(
                DecileRow(
                    decile=decile + 1,
                    neurons=int(self._neurons[decile]),
                    mean_activation=float(self._activity[decile] / self._tokens[decile]) if self._tokens[decile] else None,
                    pairs=round(total),
                    conflict_rate=float(below.sum() / 2 / total) if total else None,
                    interval=self._interval(below, pairs),
                    magnitude_similarity=float(similarity.sum() / 2 / total) if total else None,
                )
            )
        return tuple(rows)

    def _interval(self, found: FloatArray, pairs: FloatArray) -> Interval | None:
        """As `rates.share_interval`, from the sums over each sample's pairs, among the measured samples."""
        chosen = self._measured > 0
        left = pairs.sum() / 2 - pairs[chosen]
        if chosen.sum() < FEWEST or not (left > 0).all():
            return None
        estimate = float(found.sum() / pairs.sum())
        half = half_width((found.sum() / 2 - found[chosen]) / left)
        return Interval(estimate=estimate, low=max(0.0, estimate - half), high=min(1.0, estimate + half))


def _sums_of_samples(pairs: Pairs, measured: FloatArray, gamma: float) -> Tensor:
    """(3, n, S): of each neuron and measured sample the pairs with others, those in conflict, and their similarities."""
    chosen = torch.from_numpy(measured).to(pairs.gram)
    counted = pairs.counted.to(pairs.gram.dtype) * chosen
    each = counted * (counted.sum(1, keepdim=True) - counted)
    below = (pairs.below(gamma) @ chosen) * counted
    similarity = (pairs.similarity @ chosen) * counted - counted
    return torch.stack([each, below, similarity])
