"""Where pairs changed: rows and columns of a matrix, and masks that several checkpoints share."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.loops import PLAIN_BYTES, Loops, loops_for

# Columns are kept of matrices with at most this many, one bit each.
MOST_COLUMNS = 1 << 25

_WORD = 64


def room_for_changed(pairs: int) -> NDArray[np.uint64]:
    """Words for `PairCounter.update` to tell in which of so many pairs changed: bit i of word k is that of pair 64 k + i."""
    return np.empty(-(-pairs // _WORD), dtype=np.uint64)


class ChangedPlaces:
    """Which rows (the last axis) and columns of a matrix of pairs have at least one whose bf16 values differ.

    Chunks may be any consecutive elements and come in any order. Columns are given up in matrices with very many: None.
    """

    def __init__(self, rows: int, columns: int, loops: Loops | None = None) -> None:
        self.rows, self.columns = rows, columns
        self._loops = loops
        self._whole_rows = 0
        self._split_rows: set[int] = set()  # rows of which a chunk held a part: another may hold the rest
        self._columns = np.zeros(-(-columns // _WORD), dtype=np.uint64) if columns <= MOST_COLUMNS else None

    @property
    def changed_rows(self) -> int:
        """How many rows have a change."""
        return self._whole_rows + len(self._split_rows)

    @property
    def changed_columns(self) -> int | None:
        """How many columns have a change."""
        return None if self._columns is None else int(np.bitwise_count(self._columns).sum())

    def update(self, mask: NDArray[np.uint64], count: int, start: int) -> None:
        """Take in what changed of ``count`` elements of the matrix from ``start`` on, row-major: bits, as `room_for_changed` says."""
        at = 0
        while at < count:
            row, column = divmod(start + at, self.columns)
            if column or count - at < self.columns:
                length = min(self.columns - column, count - at)
                if self._mark(mask, at, column, length, 1):
                    self._split_rows.add(row)
                at += length
            else:
                whole = (count - at) // self.columns
                self._whole_rows += self._mark(mask, at, 0, self.columns, whole)
                at += whole * self.columns

    def _mark(self, mask: NDArray[np.uint64], first: int, column: int, length: int, rows: int) -> int:
        """How many of ``rows`` rows, or parts of one from ``column`` on, changed; marks their columns."""
        loops = self._loops or loops_for(PLAIN_BYTES + 1)
        flags = np.zeros(rows, dtype=np.bool_)
        loops.mark_places(mask, first, column, length, self._columns, flags)
        return int(np.count_nonzero(flags))

    def merge(self, other: "ChangedPlaces") -> None:
        """Add what the other saw of the same matrix, in other chunks."""
        self._whole_rows += other._whole_rows
        self._split_rows |= other._split_rows
        if self._columns is not None and other._columns is not None:
            self._columns |= other._columns


def intersections(masks: Sequence[NDArray[np.uint64]], loops: Loops | None = None) -> NDArray[np.int64]:
    """(K, K) how many bits each two of K masks of one length share; the bits of each itself on the diagonal."""
    together = np.stack(masks)
    return (loops or loops_for(len(masks) * together.nbytes)).intersections(together)
