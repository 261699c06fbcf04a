"""Counts each span of a group of tensors: compares the base with each tuned checkpoint, and each step of the trajectory.

Changed masks are compared between checkpoints chunk by chunk, so no mask outlives its chunk.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints import Chunk, Span, Tensor
from analyzers.numerics import ChangedPositions, PairCounter, PairCounts, PairTables, intersections, torch_kernels
from analyzers.numerics.pair_statistics import TakenTables

IntArray = NDArray[np.int64]
_FEW = 1 << 16  # values of a span that are counted here before a GPU has begun


@dataclass(frozen=True, slots=True)
class Counted:
    """Counts of some elements of one group.

    against: of each tuned checkpoint against the base; steps: of each tuned checkpoint, from the second on, against the one before it;
    places: rows and columns that the last one changed, if they are counted; overlap: (3, tuned, tuned), the elements compared in both i and
    j, those of them that i changed, and those that both changed; None for a single tuned checkpoint; tables: magnitudes of the last one's
    updates, in a sample only.
    """

    against: list[PairCounts]
    steps: list[PairCounts]
    places: ChangedPositions | None
    overlap: IntArray | None
    tables: TakenTables | None = None


class Comparer:
    """The work of a stream: compares a span chunk by chunk. Several threads may call it; each has its own tables.

    exact: everything is read, so changed rows and columns of matrices are counted and magnitudes are collected over all spans (`tables`);
    otherwise magnitudes are collected for each span.
    """

    def __init__(self, tuned: int, eta: float, device: str, exact: bool) -> None:
        self.tuned = tuned
        self._eta = eta
        self._device = device
        self.exact = exact
        self._mine = threading.local()
        self._tables: list[PairTables] = []
        self._lock = threading.Lock()

    def __call__(self, span: Span, chunks: Iterator[Chunk]) -> Counted:
        """Compare all of ``span``."""
        comparing = self.begin(span)
        for chunk in chunks:
            comparing.add(chunk)
        return comparing.take()

    def begin(self, span: Span) -> "Comparing":
        """Begin to compare a span; to be continued by the same thread."""
        return Comparing(self, span)

    def placed(self, span: Span, chunk: Chunk) -> Sequence[Any]:
        """Return the sides of a chunk, copied to a GPU once if they are to be counted there. Those of a trajectory are copied as needed."""
        in_fp64 = any(side is not None and side.counted_as == "F64" for side in span.sides)
        if self._device == "cpu" or self.tuned > 1 or in_fp64 or span.count < _FEW or not isinstance(chunk.codes, np.ndarray):
            return chunk.sides
        return [None if codes is None else torch_kernels.on_device(codes, self._device) for codes in chunk.sides]

    def tables(self) -> PairTables:
        """Merge the sketches of all comparisons with the last tuned checkpoint over all threads."""
        whole = PairTables()
        for tables in self._tables:
            whole.merge(tables)
        return whole

    def counter(self, before: str, after: str, sketched: bool) -> PairCounter:
        """Return a counter of pairs of two dtypes. sketched: whether their magnitudes are collected."""
        device = self._device if self.tuned > 1 else "cpu"  # else that of the patterns, see `placed`
        return PairCounter(before, after, self._eta, self.own_tables() if sketched else None, device)

    def own_tables(self) -> PairTables:
        """Return the tables of this thread."""
        if not hasattr(self._mine, "tables"):
            self._mine.tables = PairTables()
            with self._lock:
                self._tables.append(self._mine.tables)
        tables: PairTables = self._mine.tables
        return tables

    def places_of(self, last: Tensor | None) -> ChangedPositions | None:
        """Return counters for the rows and columns of a matrix that was not cut.

        Rows run along the last axis; the axes before it are flattened.
        """
        if not self.exact or last is None or len(last.shape) < 2 or not last.elements:
            return None
        return ChangedPositions(prod(last.shape[:-1]), last.shape[-1])


class Comparing:
    """The comparison of one span, in progress."""

    def __init__(self, comparer: Comparer, span: Span) -> None:
        self._comparer, self._span, tuned = comparer, span, comparer.tuned
        self._dtypes = [side.counted_as if side is not None else "" for side in span.sides]
        self._places = comparer.places_of(span.sides[-1])
        self._overlap = np.zeros((3, tuned, tuned), np.int64) if tuned > 1 else None
        self._against: dict[int, PairCounter] = {}
        self._steps: dict[int, PairCounter] = {}

    def add(self, chunk: Chunk) -> None:
        """Compare a chunk."""
        start, last, against, steps = chunk.start, self._comparer.tuned - 1, self._against, self._steps
        for codes, holders in segments(self._comparer.placed(self._span, chunk)):
            asked = holders if self._overlap is not None else [last] if self._places is not None else []
            masks = {i: np.empty(len(codes[0]), dtype=np.bool_) for i in asked if i in holders}
            for i in holders:
                if i not in against:
                    against[i] = self._comparer.counter(self._dtypes[0], self._dtypes[1 + i], sketched=i == last)
                against[i].update(codes[0], codes[1 + i], masks.get(i))
                if i - 1 in holders:
                    if i not in steps:
                        steps[i] = self._comparer.counter(self._dtypes[i], self._dtypes[1 + i], sketched=False)
                    steps[i].update(codes[i], codes[1 + i])
            if self._overlap is not None:
                _add_overlap(self._overlap, holders, intersections(list(masks.values())), len(codes[0]))
            if self._places is not None and last in masks:
                self._places.update(masks[last], start)
            start += len(codes[0])

    def take(self) -> Counted:
        """Return the counts, once all chunks were added."""
        tuned, exact = self._comparer.tuned, self._comparer.exact
        least = -1074 if "F64" in self._dtypes else -149  # the smallest positive float64, and fp32
        return Counted(
            [self._against[i].take() if i in self._against else PairCounts() for i in range(tuned)],
            [self._steps[i].take() if i in self._steps else PairCounts() for i in range(1, tuned)],
            self._places,
            self._overlap,
            None if exact else self._comparer.own_tables().take(least),
        )


def segments(codes: Sequence[Any]) -> Iterator[tuple[list[Any], list[int]]]:
    """Cut a chunk where a tuned tensor of fewer rows ends; yields the codes of each part and the tuned checkpoints (from 0) that have it.

    Codes of tuned checkpoints that lack a part are empty. There is one part if all have all of it.
    """
    base = codes[0]
    assert base is not None
    lengths = [0 if each is None else len(each) for each in codes[1:]]
    start = 0
    for stop in sorted(set(lengths)):
        holders = [i for i, length in enumerate(lengths) if length >= stop]
        if stop > start:
            yield [(base[:0] if each is None else each)[start:stop] for each in codes], holders
            start = stop


def _add_overlap(overlap: IntArray, holders: list[int], shared: IntArray, compared: int) -> None:
    among = np.ix_(holders, holders)
    overlap[0][among] += compared
    overlap[1][among] += np.diagonal(shared)[:, None]
    overlap[2][among] += shared
