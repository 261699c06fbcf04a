"""Table with a row for every unit.

Axes: n units of a chunk, F units of a layer or expert, S samples.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from analyzers.conflict.grams import UnitGroup
from analyzers.conflict.rows import NeuronRow
from analyzers.conflict.sample_pairs import SMALLEST_SQUARE, FloatArray, Pairs
from analyzers.core import limits

_NONE = -1
_FLOATS = ("mean_activation", "conflict_rate", "magnitude_similarity", "mean_cosine", "top_share", "effective_samples")
_COLUMNS = np.dtype(
    [("layer", "i4"), ("expert", "i4"), ("neuron", "i4"), ("pairs", "i4"), ("top_sample", "i4")] + [(name, "f4") for name in _FLOATS]
)


@dataclass(frozen=True, eq=False, slots=True)
class Concentration:
    """Concentration of units' squared norms on single samples. units: their number; dead: those without any gradient, which are in no mean.

    top_share, effective: means of the largest sample's share and of the effective number of samples, None without live units. leading:
    (S,), the share of units in which the sample has the largest norm (ties count for the first), NaN without live units.
    """

    units: int
    dead: int
    top_share: float | None
    effective: float | None
    leading: FloatArray


class NeuronTable:
    """Table of all units, 48 bytes each, filled by one layer or expert after the other. gamma: as in the request.

    Units are ranked by conflict rate, then by mean cosine. Only units in which at least half of all pairs of samples count are ranked,
    because a rate over a few pairs says little.
    """

    def __init__(self, samples: int, gamma: float) -> None:
        self._samples = samples
        self._gamma = gamma
        self._fewest = samples * (samples - 1) / 4
        self._parts: list[Any] = []
        self._where = (0, _NONE)
        self._activation: FloatArray | None = None

    def begin(self, group: UnitGroup) -> None:
        """Begin the next layer or expert."""
        self._where = (group.layer, _NONE if group.expert is None else group.expert)
        self._activation = None
        if group.activity is not None and group.tokens is not None:
            self._activation = (group.activity.double().sum(0) / group.tokens.sum()).cpu().numpy()

    def add(self, units: slice, pairs: Pairs) -> None:
        """Add a chunk of the current units."""
        rows = np.zeros(pairs.gram.shape[1], _COLUMNS)
        rows["layer"], rows["expert"] = self._where
        rows["neuron"] = np.arange(units.start, units.start + len(rows))
        rows["mean_activation"] = np.nan if self._activation is None else self._activation[units]
        for name, values in _figures(pairs, self._gamma).items():
            rows[name] = values
        self._parts.append(rows)

    def concentration(self, layer: int | None) -> "Concentration":
        """Return how the units of a layer, or for None of all layers, concentrate on single samples."""
        rows = self._table()
        rows = rows if layer is None else rows[rows["layer"] == layer]
        live = rows[rows["top_sample"] != _NONE]
        share, effective = (float(live[name].mean(dtype=float)) if len(live) else None for name in ("top_share", "effective_samples"))
        leading = np.bincount(live["top_sample"], minlength=self._samples) / max(1, len(live))
        return Concentration(len(rows), len(rows) - len(live), share, effective, leading if len(live) else leading * np.nan)

    def _table(self) -> Any:
        if len(self._parts) > 1:
            self._parts = [np.concatenate(self._parts)]
        return self._parts[0] if self._parts else np.zeros(0, _COLUMNS)

    def rows(self, listed: bool = False) -> tuple[NeuronRow, ...]:
        """Return the rows of all units, in the order measured: the last layer first.

        listed: only up to `limits.REPORT_NEURONS` of the most and as many of the least conflicted units, by rank.
        """
        rows = self._table()
        ranked = np.flatnonzero(rows["pairs"] >= self._fewest)
        ranked = ranked[np.lexsort((rows["mean_cosine"][ranked], -rows["conflict_rate"][ranked].astype(float)))]
        ranks = np.full(len(rows), _NONE)
        ranks[ranked] = np.arange(1, len(ranked) + 1)
        few = limits.REPORT_NEURONS
        chosen = (ranked if len(ranked) <= 2 * few else np.concatenate([ranked[:few], ranked[-few:]])) if listed else range(len(rows))
        return tuple(self._row(rows[index], int(ranks[index])) for index in chosen)

    def _row(self, row: Any, rank: int) -> NeuronRow:
        numbers: dict[str, Any] = {
            name: None if row[name] == _NONE else int(row[name]) for name in ("layer", "expert", "neuron", "top_sample")
        }
        floats: dict[str, Any] = {name: _number(row[name]) for name in _FLOATS}
        return NeuronRow.model_construct(rank=None if rank == _NONE else rank, pairs=int(row["pairs"]), **numbers, **floats)


def _figures(pairs: Pairs, gamma: float) -> dict[str, FloatArray]:
    """Compute a unit's statistics by column, (n,) each; NaN for a unit without pairs or without gradients."""
    counted = pairs.counted.sum(0).double()
    number = counted * (counted - 1) / 2
    squares = torch.where(pairs.squares > SMALLEST_SQUARE, pairs.squares, 0).double()
    total = squares.sum(0)
    shares = squares / total
    columns = {
        "pairs": number,
        "conflict_rate": pairs.below(gamma).sum(0).double() / number,
        "magnitude_similarity": pairs.similarity.nansum(0).double() / number,
        "mean_cosine": (pairs.cosines.nansum(0).double() / number).clamp(-1, 1),
        "top_share": shares.amax(0),
        "top_sample": torch.where(total > 0, squares.argmax(0).double(), _NONE),
        "effective_samples": 1 / shares.square().sum(0),
    }
    stacked = torch.stack(list(columns.values())).cpu().numpy()
    return dict(zip(columns, stacked, strict=True))


def _number(value: Any) -> float | None:
    """Convert a float32 to the float with its shortest decimal representation; None for NaN."""
    return None if np.isnan(value) else float(str(value))
