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
        self._tuned = tuned
        self._eta = eta
        self._device = device
        self._exact = exact
        self._mine = threading.local()
        self._tables: list[PairTables] = []
        self._lock = threading.Lock()

    def __call__(self, span: Span, chunks: Iterator[Chunk]) -> Counted:
        """Compare all of ``span``."""
        dtypes = [side.counted_as if side is not None else "" for side in span.sides]
        places = self._places_of(span.sides[-1])
        overlap = np.zeros((3, self._tuned, self._tuned), np.int64) if self._tuned > 1 else None
        against: dict[int, PairCounter] = {}
        steps: dict[int, PairCounter] = {}
        last = self._tuned - 1
        for chunk in chunks:
            start = chunk.start
            for codes, holders in segments(self._placed(span, chunk)):
                asked = holders if overlap is not None else [last] if places is not None else []
                on_host = isinstance(codes[0], np.ndarray)
                masks: dict[int, Any] = {i: np.empty(len(codes[0]), dtype=np.bool_) for i in asked if on_host and i in holders}
                for i in holders:
                    if i not in against:
                        against[i] = self._counter(dtypes[0], dtypes[1 + i], sketched=i == last)
                    against[i].update(codes[0], codes[1 + i], masks.get(i))
                    if not on_host and i in asked:
                        masks[i] = against[i].changed(codes[0], codes[1 + i])
                    if i - 1 in holders:
                        if i not in steps:
                            steps[i] = self._counter(dtypes[i], dtypes[1 + i], sketched=False)
                        steps[i].update(codes[i], codes[1 + i])
                if overlap is not None:
                    _add_overlap(overlap, holders, intersections(list(masks.values())), len(codes[0]))
                if places is not None and last in masks:
                    places.update(masks[last], start)
                start += len(codes[0])
        if places is not None:
            places.take()
        return Counted(
            [against[i].take() if i in against else PairCounts() for i in range(self._tuned)],
            [steps[i].take() if i in steps else PairCounts() for i in range(1, self._tuned)],
            places,
            overlap,
            None if self._exact else self._own_tables().take(-1074 if "F64" in dtypes else -149),  # the smallest positive float64, and fp32
        )

    def _placed(self, span: Span, chunk: Chunk) -> Sequence[Any]:
        """Return the sides of a chunk, copied to a GPU once if they are to be counted there. Those of a trajectory are copied as needed."""
        in_fp64 = any(side is not None and side.counted_as == "F64" for side in span.sides)
        if self._device == "cpu" or self._tuned > 1 or in_fp64 or span.count < _FEW or not isinstance(chunk.codes, np.ndarray):
            return chunk.sides
        return [None if codes is None else torch_kernels.on_device(codes, self._device) for codes in chunk.sides]

    def tables(self) -> PairTables:
        """Merge the sketches of all comparisons with the last tuned checkpoint over all threads."""
        whole = PairTables()
        for tables in self._tables:
            whole.merge(tables)
        return whole

    def _counter(self, before: str, after: str, sketched: bool) -> PairCounter:
        device = self._device if self._tuned > 1 else "cpu"  # else that of the patterns, see `_placed`
        return PairCounter(before, after, self._eta, self._own_tables() if sketched else None, device)

    def _own_tables(self) -> PairTables:
        if not hasattr(self._mine, "tables"):
            self._mine.tables = PairTables()
            with self._lock:
                self._tables.append(self._mine.tables)
        tables: PairTables = self._mine.tables
        return tables

    def _places_of(self, last: Tensor | None) -> ChangedPositions | None:
        """Return counters for the rows and columns of a matrix that was not cut.

        Rows run along the last axis; the axes before it are flattened.
        """
        if not self._exact or last is None or len(last.shape) < 2 or not last.elements:
            return None
        return ChangedPositions(prod(last.shape[:-1]), last.shape[-1])


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
