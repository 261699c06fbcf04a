"""Records which rows and columns of a matrix changed, and how much the changes of several checkpoints overlap."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Columns are counted only in matrices with at most this many.
MOST_COLUMNS = 1 << 25

Mask = NDArray[np.bool_]


class ChangedPositions:
    """The rows (along the last axis) and columns of a matrix with at least one pair whose bf16 values differ.

    Chunks are runs of consecutive elements, in any order. Columns are None for more than MOST_COLUMNS.
    """

    def __init__(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns
        self._whole_rows = 0
        self._split_rows: set[int] = set()  # rows cut by the end of a chunk, which other chunks may also contain
        self._columns = np.zeros(columns, dtype=np.bool_) if columns <= MOST_COLUMNS else None

    @property
    def changed_rows(self) -> int:
        """Number of rows with a change."""
        return self._whole_rows + len(self._split_rows)

    @property
    def changed_columns(self) -> int | None:
        """Number of columns with a change."""
        return None if self._columns is None else int(np.count_nonzero(self._columns))

    def update(self, changed: Mask, start: int) -> None:
        """Add the changes of elements (n,) of the matrix, row-major from element ``start`` on."""
        at = 0
        while at < changed.size:
            row, column = divmod(start + at, self.columns)
            if column or changed.size - at < self.columns:
                part = changed[at : at + self.columns - column]
                if part.any():
                    self._split_rows.add(row)
                    if self._columns is not None:
                        self._columns[column : column + part.size] |= part
                at += part.size
            else:
                rows = (changed.size - at) // self.columns
                matrix = changed[at : at + rows * self.columns].reshape(rows, self.columns)
                self._whole_rows += int(np.count_nonzero(matrix.any(axis=1)))
                if self._columns is not None and not self._columns.all():  # else more rows tell nothing
                    self._columns |= matrix.any(axis=0)
                at += matrix.size

    def merge(self, other: "ChangedPositions") -> None:
        """Add the changes found by ``other`` in other chunks of the same matrix."""
        self._whole_rows += other._whole_rows
        self._split_rows |= other._split_rows
        if self._columns is not None and other._columns is not None:
            self._columns |= other._columns


def intersections(masks: Sequence[Mask]) -> NDArray[np.int64]:
    """Return (K, K) how many elements each two of K masks of equal length share; the diagonal holds those of each mask."""
    shared = np.zeros((len(masks), len(masks)), dtype=np.int64)
    for i, mask in enumerate(masks):
        for j, other in enumerate(masks[: i + 1]):
            shared[i, j] = shared[j, i] = np.count_nonzero(mask & other)
    return shared
