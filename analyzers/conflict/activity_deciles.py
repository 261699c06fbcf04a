"""Conflict rates by decile of activation: do the most active neurons also have the most conflict?

Activity is measured on one half of the samples and conflict on the other half, so that the two share no noise.
Axes: F neurons, n of a chunk, S samples.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from analyzers.conflict.rates import pair_share, share_interval
from analyzers.conflict.rows import DecileRow
from analyzers.conflict.sample_pairs import Pairs, pair_index

DECILES = 10


class Deciles:
    """Sums by decile, over one layer or expert after the other.

    order: a permutation of the samples; the activity of its first half ranks the neurons, conflict is measured on its second half.
    """

    def __init__(self, order: Sequence[int], gamma: float) -> None:
        samples = len(order)
        self._gamma = gamma
        self._ranking = list(order[: samples // 2])
        measured = torch.zeros(samples, dtype=torch.bool)
        measured[list(order[samples // 2 :])] = True
        first, second = pair_index(samples, measured.device)
        self._pairs = (measured[first] & measured[second]).nonzero().flatten()
        self._neurons = np.zeros(DECILES, dtype=np.int64)
        self._activity = np.zeros(DECILES)  # Summed over neurons and tokens.
        self._tokens = np.zeros(DECILES)  # Number of (neuron, token) combinations.
        self._sums = np.zeros((DECILES, 3, len(self._pairs)))  # Units in which a pair counts; in which it conflicts; summed similarity.
        self._of_neuron = torch.empty(0)

    def begin(self, activity: Tensor, tokens: Tensor) -> None:
        """Begin the next layer or expert. activity: (S, F), sums of |activation| over each sample's tokens; tokens: (S,), their number."""
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
        """Add a chunk of the current layer's or expert's neurons."""
        chosen = self._pairs.to(pairs.gram.device)
        similarity = pairs.similarity[chosen]
        sums = torch.stack([(~similarity.isnan()).to(similarity.dtype), pairs.below(self._gamma)[chosen], similarity.nan_to_num()])
        self._sums += (sums @ self._of_neuron[units].to(sums.dtype)).permute(2, 0, 1).double().cpu().numpy()

    def rows(self) -> tuple[DecileRow, ...]:
        """Return the rows, from the least active decile to the most active."""
        rows = []
        for decile, (pairs, below, similarity) in enumerate(self._sums):
            rows.append(
                DecileRow(
                    decile=decile + 1,
                    neurons=int(self._neurons[decile]),
                    mean_activation=float(self._activity[decile] / self._tokens[decile]) if self._tokens[decile] else None,
                    pairs=round(pairs.sum()),
                    conflict_rate=pair_share(below, pairs),
                    interval=share_interval(below, pairs),
                    magnitude_similarity=pair_share(similarity, pairs),
                )
            )
        return tuple(rows)
