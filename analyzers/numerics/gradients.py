"""Gradients of units sample by sample, and what they say: Gram matrices, and sums over weights. None of them is ever in memory.

The gradient of unit n in sample s is g_s = sum over the tokens t of s of left[t, n] right[t]. All arrays are float32.
Axes: T tokens, S samples, n units, d width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.machine_code import Loop

Floats = NDArray[np.float32]

_arrangement, _make_panels, _unit_grams = (Loop("gradient_kernels", name) for name in ("arrangement", "make_panels", "unit_grams"))

# What tiles of gradients may take of a core's second cache.
_CACHE_BYTES = 3 << 19
# Columns of a tile are a multiple of this: so that what is summed together, and with that each bit of a result, is the same on any machine.
_STEP = 48
_LINE = 64

# mean^2 / variance is counted by its first bits as a float32: sign, exponent and 5 bits of the mantissa, so that a bin is 3 % wide.
DROPPED = 18
BINS = 1 << (32 - 1 - DROPPED)
LARGEST = 2.0**40


class _Arrangement(NamedTuple):
    """columns: of a panel; together: units that are made at once; lanes: numbers of a vector; side: samples on a side of a block of
    products; tokens: whose vectors are packed at once.
    """

    columns: int
    together: int
    lanes: int
    side: int
    tokens: int


@cache
def _arranged() -> _Arrangement:
    """As it is for this machine."""
    return _Arrangement(*_arrangement())


class Panels:
    """What a unit's gradients are made of beside what it gets itself, arranged as they are multiplied. starts: (S + 1,), of T."""

    def __init__(self, counts: Sequence[int], width: int) -> None:
        """counts: (S,), tokens of each sample, which stand together. Holds anything until it is filled."""
        self.starts: NDArray[np.int64] = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self.width = width
        self.numbers = _room(sum(counts) * _up(width, _arranged().columns))

    def fill(self, right: Floats, factor: float, samples: slice) -> None:
        """Take in ``factor`` times the inputs of some of the samples, of those of all (T, d)."""
        if right.dtype != np.float32 or right.shape != (self.starts[-1], self.width):
            raise ValueError("inputs are not float32, or of other tokens")
        _make_panels(right, factor, self.starts, (samples.start, samples.stop), self.numbers)


@dataclass(eq=False, slots=True)
class WeightCounts:
    """Sums over weights. sums: (4, lanes), of N+ N- / C(N+ + N-, 2) and |N+ - N-| / (N+ + N-) over those with N+ + N- >= 2, which are
    ``counted``; of mean^2; of the variance (S - 1 in the denominator). N+ and N- samples have a gradient above and below 0.

    bins: how often mean^2 / variance has these first bits, of weights with N+ + N- >= 1.
    """

    sums: NDArray[np.float64] = field(default_factory=lambda: np.zeros((4, _arranged().lanes)))
    bins: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(BINS, np.uint32))
    counted: int = 0


def unit_grams(left: Floats, given: Panels, factor: float, weights: WeightCounts | None = None) -> Floats:
    """(n, S, S), symmetric: of each unit the products of its samples' gradients, made with ``factor`` times ``left`` (T, n).

    The numbers of a token lie side by side in ``left``, tokens any way apart. To ``weights`` all single weights are added.
    """
    tokens, units = left.shape
    samples = len(given.starts) - 1
    if left.dtype != np.float32 or tokens != given.starts[-1] or (left.size and units > 1 and left.strides[1] != left.itemsize):
        raise ValueError("what units get is not float32, of other tokens, or does not lie side by side")
    if not tokens:  # nothing is added anywhere
        return np.zeros((units, samples, samples), np.float32)
    how = _arranged()
    around, rows = _up(samples, how.lanes), _up(samples, how.side)
    tile = max(1, _CACHE_BYTES // (4 * how.together * rows * _STEP)) * _STEP
    tile = min(tile, _up(given.width, how.columns))
    apart = tile + (how.lanes - tile) % (4 * how.lanes)  # samples must not all fall into the same places of a cache
    grams = np.empty((units, samples, samples), np.float32)
    limits = np.array([1 / LARGEST, LARGEST, np.finfo(np.float32).tiny, samples, max(1, samples - 1)], np.float32)
    counts = WeightCounts(bins=np.empty(0, np.uint32)) if weights is None else weights
    counts.counted += _unit_grams(
        (left.ctypes.data, left.strides[0]), factor, given.numbers, given.starts, given.width, (tile, apart),
        _room(how.tokens * how.together), _room(how.together * rows * apart), _room(how.together * around * around),
        grams, limits, counts.sums, counts.bins, DROPPED,
    )  # fmt: skip
    return grams


def units_together() -> int:
    """So many units `unit_grams` makes at once: it goes over their inputs once."""
    return _arranged().together


def room_bytes(samples: int) -> int:
    """Memory that `unit_grams` of so many samples works in, beside what it returns."""
    how = _arranged()
    around, rows = _up(samples, how.lanes), _up(samples, how.side)
    return _CACHE_BYTES + 4 * how.together * (around * around + how.tokens + (_STEP + 4 * how.lanes) * rows)


def _up(number: int, step: int) -> int:
    """The next multiple."""
    return -(-number // step) * step


def _room(numbers: int) -> Floats:
    """So many numbers of any value, which begin with a line of a cache."""
    room = np.empty(numbers + _LINE // 4, np.float32)
    first = -room.ctypes.data % _LINE // 4
    return room[first : first + numbers]


def warm() -> None:
    """Load them, compiled if that was never done."""
    one = np.ones((1, 1), np.float32)
    panels = Panels([1], 1)
    panels.fill(one, 1.0, slice(0, 1))
    unit_grams(one, panels, 1.0, WeightCounts())
