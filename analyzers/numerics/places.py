"""Where pairs changed: rows and columns of a matrix, and masks that several checkpoints share."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.loops import PLAIN_BYTES, Loops, loops_for

# Flags are kept for matrices with at most this many columns, one byte each.
MOST_COLUMNS = 1 << 22


class ChangedPlaces:
    """Which rows (the last axis) and columns of a matrix of pairs have at least one whose bf16 values differ.

    Chunks may be any consecutive elements and come in any order. Columns are given up in matrices with very many: None.
    """

    def __init__(self, rows: int, columns: int, loops: Loops | None = None) -> None:
        self.rows, self.columns = rows, columns
        self._loops = loops
        self._whole_rows = 0
        self._split_rows: set[int] = set()  # rows of which a chunk held a part: another may hold the rest
        self._columns = np.zeros(columns, dtype=np.bool_) if columns <= MOST_COLUMNS else None
        self._open_columns = True  # whether there is a column without a change so far

    @property
    def changed_rows(self) -> int:
        """How many rows have a change."""
        return self._whole_rows + len(self._split_rows)

    @property
    def changed_columns(self) -> int | None:
        """How many columns have a change."""
        return None if self._columns is None else int(np.count_nonzero(self._columns))

    def update(self, base: NDArray[Any], tuned: NDArray[Any], dtypes: tuple[str, str], start: int) -> None:
        """Take in pairs of patterns, (n,) each, of the dtypes of the two: elements of the matrix from ``start`` on, row-major."""
        if base.size != tuned.size:
            raise ValueError(f"{base.size} patterns and {tuned.size} are no pairs")
        at = 0
        while at < base.size:
            row, column = divmod(start + at, self.columns)
            if column or base.size - at < self.columns:
                end = min(at + self.columns - column, base.size)
                if self._mark(base[at:end], tuned[at:end], dtypes, column, 1):
                    self._split_rows.add(row)
            else:
                whole = (base.size - at) // self.columns
                end = at + whole * self.columns
                self._whole_rows += self._mark(base[at:end], tuned[at:end], dtypes, 0, whole)
            at = end

    def _mark(self, base: NDArray[Any], tuned: NDArray[Any], dtypes: tuple[str, str], column: int, rows: int) -> int:
        """How many of ``rows`` rows, or parts of one from ``column`` on, changed; marks their columns."""
        loops = self._loops or loops_for(PLAIN_BYTES + 1)
        flags = np.zeros(rows, dtype=np.bool_)
        marked = None if self._columns is None or not self._open_columns else self._columns[column : column + base.size // rows]
        loops.changed_rows(base, tuned, dtypes, marked, flags)
        if marked is not None:
            self._look_for_open_columns()
        return int(np.count_nonzero(flags))

    def merge(self, other: "ChangedPlaces") -> None:
        """Add what the other saw of the same matrix, in other chunks."""
        self._whole_rows += other._whole_rows
        self._split_rows |= other._split_rows
        if self._columns is not None and other._columns is not None:
            self._columns |= other._columns
            self._look_for_open_columns()

    def _look_for_open_columns(self) -> None:
        self._open_columns = self._columns is not None and not self._columns.all()


def changed_mask(base: NDArray[Any], tuned: NDArray[Any], dtypes: tuple[str, str], loops: Loops | None = None) -> NDArray[np.uint8]:
    """Which pairs of patterns, (n,) each, of the dtypes of the two have different bf16 values: ceil(n / 8) bytes of 8 bits each.

    Bit i of byte b is that of pair 8 b + i; the last byte is filled with zeros.
    """
    return (loops or loops_for(base.nbytes + tuned.nbytes)).changed_mask(base, tuned, dtypes)


def intersections(masks: Sequence[NDArray[np.uint8]], loops: Loops | None = None) -> NDArray[np.int64]:
    """(K, K) how many bits each two of K masks of one length share; the bits of each itself on the diagonal."""
    together = np.stack(masks)
    return (loops or loops_for(len(masks) * together.nbytes)).intersections(together)
