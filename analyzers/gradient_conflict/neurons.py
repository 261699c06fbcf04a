"""Table with a row for every unit, and the cosines between samples for the units that conflict most and least.

Axes: n units of a chunk, F units of a layer, expert or projection, S samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from analyzers import limits
from analyzers.gradient_conflict.rates import rounded
from analyzers.gradient_conflict.sample_pairs import SMALLEST_SQUARE, FloatArray, Pairs
from analyzers.gradient_conflict.summaries import NeuronCosines, NeuronRow, Neurons

if TYPE_CHECKING:
    import pandas

SHOWN = 8
"""Number of most (and of least) conflicted units whose cosines between samples are stored, as far as `limits.NEURON_COSINES` allows."""
_NONE = -1
_FLOATS = ("mean_activation", "conflict_rate", "magnitude_similarity", "mean_cosine", "top_share", "effective_samples")
_COLUMNS = np.dtype(
    [("layer", "i4"), ("expert", "i4"), ("block", "i1"), ("neuron", "i4"), ("pairs", "i4"), ("top_sample", "i4")]
    + [(name, "f4") for name in _FLOATS]
)


@dataclass(frozen=True, eq=False, slots=True)
class _Candidate:
    """A unit that may be shown. key: smaller is first. cosines: (S, S), NaN for pairs that do not count."""

    key: tuple[float, float]
    row: Any
    cosines: FloatArray


class NeuronTable:
    """Table of all units, 48 bytes each, filled by one layer, expert or projection after the other. gamma: as in the request.

    Units are ranked by conflict rate, then by mean cosine. Only units in which at least half of all pairs of samples count are ranked,
    because a rate over a few pairs says little.
    """

    def __init__(self, samples: int, gamma: float) -> None:
        self._gamma = gamma
        self._fewest = samples * (samples - 1) / 4
        self._shown = min(SHOWN, limits.NEURON_COSINES // (2 * samples**2))
        self._parts: list[Any] = []
        self._most: list[_Candidate] = []
        self._least: list[_Candidate] = []
        self._blocks: list[str] = []
        self._where = (0, _NONE, _NONE)
        self._activation: FloatArray | None = None

    def begin(self, layer: int, expert: int | None, block: str | None, activity: Tensor | None, tokens: Tensor) -> None:
        """Begin the next layer, expert or projection. block: the projection's, None for neurons. activity, tokens: as in `LayerCapture`."""
        if block is not None and block not in self._blocks:
            self._blocks.append(block)
        self._where = (layer, _NONE if expert is None else expert, _NONE if block is None else self._blocks.index(block))
        self._activation = None if activity is None else (activity.double().sum(0) / tokens.sum()).cpu().numpy()

    def add(self, units: slice, pairs: Pairs) -> None:
        """Add a chunk of the current units."""
        rows = np.zeros(pairs.gram.shape[1], _COLUMNS)
        rows["layer"], rows["expert"], rows["block"] = self._where
        rows["neuron"] = np.arange(units.start, units.start + len(rows))
        rows["mean_activation"] = np.nan if self._activation is None else self._activation[units]
        for name, values in _figures(pairs, self._gamma).items():
            rows[name] = values
        self._parts.append(rows)
        if self._shown:
            self._most = self._best(self._most, rows, pairs, _most_first(rows))
            self._least = self._best(self._least, rows, pairs, _least_first(rows))

    def _best(self, known: list[_Candidate], rows: Any, pairs: Pairs, keys: Sequence[FloatArray]) -> list[_Candidate]:
        """Return the first `_shown` units among ``known`` and a chunk; cosines are copied only for units that enter."""
        last = known[-1].key if len(known) == self._shown else (np.inf, np.inf)
        order = np.lexsort(keys[::-1])
        added = [
            _Candidate(key, rows[index], _cosines(pairs, int(index)))
            for index in order[rows["pairs"][order] >= self._fewest][: self._shown]
            if (key := (float(keys[0][index]), float(keys[1][index]))) < last
        ]
        return sorted([*known, *added], key=lambda each: each.key)[: self._shown]

    def summary(self) -> Neurons:
        """Summarize for the report: up to `limits.REPORT_NEURONS` of the most and of the least conflicted units, none in both lists."""
        rows = self.rows()
        ranked = rows[rows["pairs"] >= self._fewest]
        most = np.lexsort(_most_first(ranked)[::-1])[: min(limits.REPORT_NEURONS, (len(ranked) + 1) // 2)]
        least = np.lexsort(_least_first(ranked)[::-1])[: min(limits.REPORT_NEURONS, len(ranked) // 2)]
        named = {_place(row) for row in (*ranked[most], *ranked[least])}
        shown = {place: each for each in (*self._most, *self._least) if (place := _place(each.row)) in named}
        return Neurons(
            total=len(rows),
            ranked=len(ranked),
            most=tuple(map(self._row, ranked[most])),
            least=tuple(map(self._row, ranked[least])),
            cosines=tuple(NeuronCosines(**self._named(each.row), values=rounded(each.cosines, 4)) for each in shown.values()),
        )

    def rows(self) -> Any:
        """Return all rows as a structured array."""
        return np.concatenate(self._parts) if self._parts else np.zeros(0, _COLUMNS)

    def frame(self) -> "pandas.DataFrame":
        """Return all rows with the columns of `NeuronRow`, in the order measured: the last layer first."""
        import pandas

        rows = self.rows()
        table = pandas.DataFrame({name: rows[name] for name in _COLUMNS.names or ()})
        table["expert"] = table["expert"].astype("Int64").mask(rows["expert"] == _NONE)
        table["top_sample"] = table["top_sample"].astype("Int64").mask(rows["top_sample"] == _NONE)
        table["block"] = table["block"].map(dict(enumerate(self._blocks)))
        return table[list(NeuronRow.model_fields)]

    def _row(self, row: Any) -> NeuronRow:
        values: dict[str, Any] = {name: _number(row[name]) for name in _FLOATS}
        top_sample = None if row["top_sample"] == _NONE else int(row["top_sample"])
        return NeuronRow(**self._named(row), **values, pairs=int(row["pairs"]), top_sample=top_sample)

    def _named(self, row: Any) -> dict[str, Any]:
        expert, block = int(row["expert"]), int(row["block"])
        return {
            "layer": int(row["layer"]),
            "expert": None if expert == _NONE else expert,
            "block": None if block == _NONE else self._blocks[block],
            "neuron": int(row["neuron"]),
        }


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


def _most_first(rows: Any) -> tuple[FloatArray, FloatArray]:
    """Return sort keys: large conflict rates first, then small mean cosines; units without pairs last."""
    return -rows["conflict_rate"].astype(float), rows["mean_cosine"].astype(float)


def _least_first(rows: Any) -> tuple[FloatArray, FloatArray]:
    return rows["conflict_rate"].astype(float), -rows["mean_cosine"].astype(float)


def _cosines(pairs: Pairs, unit: int) -> FloatArray:
    """Return the cosines (S, S) of one unit; NaN for pairs that do not count."""
    present = pairs.counted[:, unit].double().cpu().numpy()
    cosines = np.diag(np.where(present > 0, 1.0, np.nan))
    first, second = np.triu_indices(len(present), 1)
    cosines[first, second] = cosines[second, first] = pairs.cosines[:, unit].double().clamp(-1, 1).cpu().numpy()
    return cosines


def _place(row: Any) -> tuple[int, ...]:
    return tuple(int(row[name]) for name in ("layer", "expert", "block", "neuron"))


def _number(value: Any) -> float | None:
    """Convert a float32 to the float with its shortest decimal representation; None for NaN."""
    return None if np.isnan(value) else float(str(value))
