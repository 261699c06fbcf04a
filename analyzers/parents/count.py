"""What is counted of the values of a model X and its candidates P_1 to P_m, read at the same places.

Each block of `BLOCK` consecutive values adds to sums per candidate and to a Gram matrix of X and the candidates. The blocks of a
layer are
dealt to `GROUPS` groups, the units of the jackknife. Some values are kept for tests that need the fit first.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints import Alignment, Chunk, Span
from analyzers.numerics.conversions import values_of
from analyzers.parents.rounding import THROUGH, Floats, Ints, equal_as_cast, rounded, rounding_error

BLOCK = 4096
GROUPS = 32
# Values that are kept together are consecutive: a multiple of RUN at first, of SHORT_RUN where some are left out.
RUN = 128
SHORT_RUN = 32
# Per candidate: values, equal in bf16, X.X, X.P, P.P, zero in X only; then equal as cast (`THROUGH`).
PAIR_SUMS = 6 + len(THROUGH)
_PATTERNS = 1 << 16
_PIECE = 4 * BLOCK  # values at once: in float64, with copies, for each of many threads
_BEYOND = 1e6  # no weight is as large: a few broken values must not decide a cosine


@dataclass(slots=True)
class Counted:
    """Of one span.

    pairs: (m, PAIR_SUMS); others: (m, 1 + len(THROUGH)) values of vectors and constant blocks, and how many are equal as cast; broken: the
    same of values that are not finite, or beyond all weights, on any side; exact: (m,) of all these, those that are equal as stored. grams:
    group -> Gram matrix of X and the candidates; rounding: what rounding X adds to |X|^2 on average; kept: rows of X and the candidates.
    """

    pairs: Floats
    others: Ints
    broken: Ints
    exact: Ints
    grams: dict[int, Floats] = field(default_factory=dict)
    rounding: float = 0.0
    kept: list[NDArray[Any]] = field(default_factory=list)


class Counter:
    """The work of a stream; called from several threads.

    fit: whether to make Gram matrices, in which a candidate without a tensor is 0; keep: the share of the values to keep, of all sides.
    histograms: (2, m, 65536) how often each bf16 pattern occurs in X and in each candidate, over the values compared.
    """

    def __init__(self, alignment: Alignment, candidates: int, fit: bool, keep: float) -> None:
        self._groups = {group.base.name: (number, group) for number, group in enumerate(alignment.groups)}
        self._candidates, self._sides = candidates, (1 + candidates) * fit
        run = max(keep * _PIECE, 1e-9)
        self._run, self._every = ceil(run / RUN) * RUN if keep else 0, max(1, round(RUN / run))
        self._lock = threading.Lock()
        self.histograms: Ints = np.zeros((2, candidates, _PATTERNS), np.int64)

    def __call__(self, span: Span, chunks: Iterator[Chunk]) -> Counted:
        """Count all of ``span``."""
        number, group = self._groups[span.tensor.name]
        casts = (self._candidates, 1 + len(THROUGH))
        counted = Counted(
            np.zeros((self._candidates, PAIR_SUMS)), np.zeros(casts, np.int64), np.zeros(casts, np.int64), np.zeros(casts[0], np.int64)
        )
        holders = [i for i, side in enumerate(group.tuned) if side is not None]
        dtypes = [side.counted_as for side in group.sides if side is not None]
        matrix = is_matrix(group.base.shape, group.base.role)
        for chunk in chunks:
            codes = [each for each in chunk.sides if each is not None]
            common = min(each.size for each in codes)  # a resized embedding: the rows that all have
            patterns: list[NDArray[np.uint16]] = []
            for start in range(0, common, _PIECE):
                with np.errstate(invalid="ignore"):
                    parts = [values_of(each[start : min(start + _PIECE, common)], dtype) for each, dtype in zip(codes, dtypes, strict=True)]
                every = np.stack(parts)
                values = finite(every)
                _count_exact(counted, every, values.shape[1], holders)
                constant = np.zeros(0, np.bool_) if matrix else np.ones(values.shape[1], np.bool_)
                if matrix and values.size:
                    constant = _constant(values[0])
                    some = values[:, ~constant] if constant.any() else values
                    patterns.append(self._count(counted, some, holders, dtypes, (chunk.start + start) // BLOCK + number))
                if constant.any():
                    for row, i in enumerate(holders, 1):
                        x, p = values[0, constant], values[row, constant]
                        counted.others[i] += (x.size, *equal_as_cast(x, p, (dtypes[0], dtypes[row])))
            if patterns:
                self._tally(holders, np.concatenate(patterns, axis=1))
        return counted

    def _tally(self, holders: Sequence[int], patterns: NDArray[np.uint16]) -> None:
        """Add bf16 patterns, (sides, n): of a whole chunk, because a histogram is as long as many values."""
        counts = [np.bincount(each, minlength=_PATTERNS) for each in patterns]
        with self._lock:
            for row, i in enumerate(holders, 1):
                self.histograms[0, i] += counts[0]
                self.histograms[1, i] += counts[row]

    def _count(self, counted: Counted, values: Floats, holders: Sequence[int], dtypes: Sequence[str], number: int) -> NDArray[np.uint16]:
        """Add values of matrices, (sides, n); number: of the first block. Returns their bf16 patterns."""
        padded = np.pad(values, ((0, 0), (0, -values.shape[1] % BLOCK)))  # zeros add nothing
        blocks = padded.reshape(len(values), -1, BLOCK).transpose(1, 0, 2)
        grams = blocks @ blocks.transpose(0, 2, 1)
        whole, in_bf16 = grams.sum(axis=0), np.stack([rounded(each, "BF16") for each in values])
        x = values[0]
        for row, i in enumerate(holders, 1):
            cast = equal_as_cast(x, values[row], (dtypes[0], dtypes[row]))
            equal, zeroed = (in_bf16[0] == in_bf16[row]).sum(), ((x == 0) & (values[row] != 0)).sum()
            counted.pairs[i] += (x.size, equal, whole[0, 0], whole[0, row], whole[row, row], zeroed, *cast)
        patterns = (in_bf16.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        rows = [0, *(1 + i for i in holders)]
        if not self._sides or len(rows) == 1:
            return patterns
        for block, gram in enumerate(grams, number):
            full = counted.grams.setdefault(block % GROUPS, np.zeros((self._sides, self._sides)))
            full[np.ix_(rows, rows)] += gram
        counted.rounding += rounding_error(x, dtypes[0])
        if self._run and number % self._every == 0:
            length = max(min(self._run, x.size) // SHORT_RUN, 1) * SHORT_RUN
            kept = np.zeros((self._sides, min(length, x.size)), np.float64 if "F64" in dtypes else np.float32)
            kept[rows] = values[:, :length]
            counted.kept.append(kept)
        return patterns

    def by_chance(self, candidate: int) -> float | None:
        """The sum of p_k q_k over bf16 patterns; +0 is -0."""
        x, p = self.histograms[:, candidate].astype(np.float64)
        for each in (x, p):
            each[0] += each[0x8000]
            each[0x8000] = 0
        total = x.sum() * p.sum()
        return float(x @ p / total) if total else None


def is_matrix(shape: Sequence[int], role: str) -> bool:
    """Whether a tensor's values are compared: norms and biases are not."""
    return role != "norm" and len(shape) > 1 and min(shape[-2:]) > 1


def finite(values: Floats) -> Floats:
    """The columns of ``values`` that are finite on every side, and not so large that their squares overflow."""
    usable = (np.abs(values) < _BEYOND).all(axis=0)  # False for NaN
    return values if usable.all() else values[:, usable]


def _count_exact(counted: Counted, values: Floats, usable: int, holders: Sequence[int]) -> None:
    """Add how many values, (sides, n), are equal as stored, and those that are not finite on all sides. A NaN equals any NaN."""
    same = values[0] == values[1:]
    if usable < values.shape[1]:
        same |= np.isnan(values[0]) & np.isnan(values[1:])
        broken = same[:, ~(np.abs(values) < _BEYOND).all(axis=0)]
        for row, i in enumerate(holders):
            counted.broken[i] += (broken.shape[1], *[int(broken[row].sum())] * len(THROUGH))
    for row, i in enumerate(holders):
        counted.exact[i] += int(same[row].sum())


def _constant(x: Floats) -> NDArray[np.bool_]:
    """(n,) whether a value's block is constant, as tensors are that were never trained: they say nothing about descent."""
    starts = np.arange(0, x.size, BLOCK)
    same = np.maximum.reduceat(x, starts) == np.minimum.reduceat(x, starts)
    return np.repeat(same, np.diff(np.append(starts, x.size)))
