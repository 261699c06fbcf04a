"""Counts values that equal a combination of candidates, rounded as stored, and finds the weights at which most do."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from analyzers.comparison.counting import Floats, Values
from analyzers.comparison.parents.report import ABOVE_CHANCE, PROVEN
from analyzers.comparison.table import Layer, Table
from analyzers.numerics.conversions import FLOATS
from analyzers.numerics.formats import BF16, FP16, FP32

# If at least this share of the values is exact, the exact values determine the weights.
EXACT = 0.99
# Additional share of values that an exact combination of several parents must prove compared with the best candidate alone, if both are
# within rounding; or the largest fraction of the candidate's unexplained values that it may leave unexplained.
_PROVES, _LEAVES = 0.05, 0.1
# Additional share of values that per-layer weights must prove compared with common weights.
_BETTER = 0.01
# Number of values on which weights are tried: over all layers, and in one layer; steps in which weights are tried.
_OVERALL, _OF_LAYER, _GRID, STEPS = 1 << 14, 1 << 12, 0.01, (0.05, 0.01, 0.001)
_PIECE = 1 << 18  # values tested at a time, in float64
_UNIT = 2.0**-24  # half an ulp of fp32, relative
# Formats to which rounding is implemented.
FORMATS = {"BF16": BF16, "F16": FP16, "F32": FP32}


@dataclass(frozen=True, slots=True)
class Exactness:
    """The share of X's ``values`` tested that equal the combination at ``weights``, or at the weights of each layer.

    common: the share at weights that all layers have in common.
    """

    share: float
    by_chance: float
    values: int
    weights: tuple[float, ...]
    common: float


class KeptValues:
    """The values of X and its candidates that a pass has kept, by layer; candidates are numbered from 0. dtype: of X's matrices, if one."""

    def __init__(self, table: Table, sides: Sequence[int], layers: Sequence[Layer], dtype: str) -> None:
        self._layers = {layer: kept for layer in layers if (kept := table.of_layer(layer, sides)).size}
        self._dtype = dtype
        self._narrow = narrowest([_some(kept)[0] for kept in self._layers.values()], dtype) if dtype in FORMATS else None

    def number(self, layer: Layer) -> int:
        """Return the number of values of a layer."""
        return int(self._layers[layer].shape[1]) if layer in self._layers else 0

    def rounding(self, layer: Layer) -> float:
        """Estimate the squared error that rounding X to its dtype makes in a layer, as a share of X's sum of squares."""
        x = self._layers[layer][0].astype(np.float64) if layer in self._layers else np.zeros(1)
        square = float(x @ x)
        return rounding_error(x, self._dtype) / square if square > 0 else 0.0

    def equal(self, i: int) -> float:
        """Return the share of values that equal candidate ``i``'s."""
        same = sum(int((values[0] == values[1 + i]).sum()) for values in self._layers.values())
        return same / max(1, sum(map(self.number, self._layers)))

    def exactness(
        self, parents: Sequence[int], start: Floats, starts: Mapping[Layer, Floats]
    ) -> tuple[Exactness | None, dict[Layer, Exactness]]:
        """Count the values that equal the combination of ``parents``, with common weights and with the weights of each layer.

        start, starts: weights near which others are tried, of all layers and of each.
        """
        dtype = self._narrow
        if dtype is None or not self._layers:
            return None, {}
        rows = [0, *(1 + i for i in parents)]
        some = np.concatenate([_some(values[rows], max(1, _OVERALL // len(self._layers))) for values in self._layers.values()], axis=1)
        weights, stored = exact_weights(some, start, dtype)
        chance = by_chance(some[0], rounded(weights @ some[1:], dtype))
        layers = dict[Layer, Exactness]()
        for layer, kept in self._layers.items():
            values, best = kept[rows], weights
            common = share = _share(values, weights, dtype, stored)
            if common < EXACT:  # merges may have different weights in each layer
                own, own_stored = exact_weights(_some(values), starts[layer], dtype)
                share = max(common, _share(values, own, dtype, own_stored))
                best = own if share > common else weights
            held = values[1:].any(axis=1)  # a candidate without this layer has no weight in it
            layers[layer] = Exactness(share, chance, values.shape[1], tuple((best * held).tolist()), common)
        total = sum(each.values for each in layers.values())
        shared, together = (sum(getattr(each, name) * each.values for each in layers.values()) / total for name in ("common", "share"))
        best_share = together if together > shared + _BETTER else shared
        return Exactness(best_share, chance, total, tuple(map(float, weights)), shared), layers


def proves(exact: float, by_chance: float, alone: float, parents: int) -> bool:
    """Return whether a share of exact values proves the combination of this many parents, by more than chance and one candidate explain."""
    return exact > max(PROVEN, ABOVE_CHANCE * by_chance) and (parents < 2 or proves_more(exact, alone))


def proves_more(together: float, alone: float) -> bool:
    """Return whether an exact combination of several parents explains many more values than a single candidate does."""
    return together > alone + _PROVES or 1 - together < _LEAVES * (1 - alone)


def is_combination(values: Floats, parents: Floats, weights: Floats, dtype: str, stored: bool = False) -> NDArray[np.bool_]:
    """Return (n,) which ``values`` equal sum of a_i P_i, computed in fp32 and rounded to ``dtype``. parents: (k, n).

    The order of the sum and the rounding of the weights are unknown, so every result that fp32 arithmetic may give counts: within (k + 1)
    2^-24 sum |a_i P_i| of the sum. This matters for ties, which are frequent between narrow formats. stored: each product is rounded to
    ``dtype`` first, as arithmetic in a narrow format does.
    """
    parts = weights[:, None] * parents
    parts = rounded(parts, dtype) if stored else parts
    total, margin = parts.sum(axis=0), (len(parts) + 1) * _UNIT * np.abs(parts).sum(axis=0)
    if len(weights) == 1 and weights[0] == 1:
        margin = np.zeros_like(total)
    found: NDArray[np.bool_] = (rounded(total - margin, dtype) <= values) & (values <= rounded(total + margin, dtype))
    return found


def exact_weights(some: Floats, start: Floats, dtype: str) -> tuple[Floats, bool]:
    """Find the weights near ``start``, and the arithmetic (`is_combination`), for which most of ``some[0]`` equals the combination.

    Tries ``start``, and from its nearest multiples of `_GRID` on whatever neighbours explain more values: least squares takes rounding for
    noise that is independent of the parents, but between siblings that differ by an ulp or two it is not, and the weights come out wrong by
    0.02 and more.
    """

    def explained(weights: Floats, stored: bool) -> float:
        return float(is_combination(some[0], some[1:], weights, dtype, stored).mean())

    found = []
    for stored in (False, True) if len(start) > 1 and dtype in ("BF16", "F16") else (False,):
        best = np.round(start / _GRID) * _GRID
        share = explained(best, stored)
        for step in STEPS:
            while share < 1:
                most, nearest = max(((explained(each, stored), each) for each in _neighbours(best, step)), key=lambda each: each[0])
                if most <= share:
                    break
                share, best = most, nearest
        found += [(share, best, stored), (explained(start, stored), start, stored)]
        if stored:  # some programs round the weights too
            narrow = rounded(best, dtype)
            found.append((explained(narrow, True), narrow, True))
    _, weights, stored = max(found, key=lambda each: each[0])  # multiples of the grid win ties
    return weights, stored


def _neighbours(weights: Floats, size: float) -> Iterator[Floats]:
    """Yield the weights one step of this size away: each alone, and each two in opposite directions."""
    steps = np.eye(len(weights)) * size
    for step, sign in product(steps, (1, -1)):
        yield np.round(weights + sign * step, 3)
    for one, other in product(steps, steps):
        if one is not other and (one != other).any():
            yield np.round(weights + one - other, 3)


def by_chance(x: Floats, y: Floats) -> float:
    """Return the share of equal values expected between unrelated ``x`` and ``y``: the sum of p_k q_k over values."""
    (a, n), (b, m) = (np.unique(each, return_counts=True) for each in (x, y))
    _, i, j = np.intersect1d(a, b, assume_unique=True, return_indices=True)
    return float(n[i].astype(np.float64) @ m[j].astype(np.float64)) / max(1, x.size * y.size)


def _some(values: Values, most: int = _OF_LAYER) -> Floats:
    """Return about ``most`` columns at most, in float64."""
    return values[:, :: max(1, values.shape[1] // most)].astype(np.float64)


def _share(values: Values, weights: Floats, dtype: str, stored: bool) -> float:
    same = 0
    for start in range(0, values.shape[1], _PIECE):
        piece = values[:, start : start + _PIECE].astype(np.float64)
        same += int(is_combination(piece[0], piece[1:], weights, dtype, stored).sum())
    return same / max(1, int(values.shape[1]))


def rounded(values: Floats, dtype: str) -> Floats:
    """Round ``values`` to nearest even, to fp32 first, like storing the result of fp32 arithmetic."""
    with np.errstate(over="ignore"):
        narrow: Floats = values.astype(np.float32).astype(FLOATS[dtype]).astype(np.float64)
    return narrow


def narrowest(parts: list[Floats], dtype: str) -> str:
    """Return ``dtype``, or the dtype from which all values were upcast to it."""
    upcast = (narrow for narrow in ("BF16", "F16") if all((rounded(each, narrow) == each).all() for each in parts))
    return next(upcast, dtype) if dtype == "F32" else dtype


def rounding_error(values: Floats, dtype: str) -> float:
    """Return the sum of ulp(x)^2 / 12, the expected squared error of rounding to ``dtype``; 0 if rounding is not implemented."""
    return float(np.square(FORMATS[dtype].ulp(values[values != 0])).sum()) / 12 if dtype in FORMATS else 0.0
