"""Selects rows of instruction data: the first rows or a seeded random choice; only the selected rows are stored.

The random choice is ``random.Random(seed).sample(range(rows), samples)`` from Python's standard library: the same rows as
``random.seed(seed)`` and ``random.sample`` of a list of all rows give, as in many notebooks.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Any, Literal

from analyzers.checkpoints import Repository, quoted
from analyzers.core import limits
from analyzers.core.errors import InvalidData
from analyzers.language_models.data_rows import JsonRows, ParquetRows

RowSelection = Literal["random", "first"]
# Reading each file's footer takes a few requests before a row can be chosen.
_PARQUET_FILES = 64


@dataclass(frozen=True, slots=True)
class SelectedRows:
    """The chosen rows. values: (source location, value) of each; rows: their indices, counted from 0 across all files, ascending.

    total: number of rows chosen from. limited: whether rows were chosen from a part of the data.
    """

    values: tuple[tuple[str, Any], ...]
    rows: tuple[int, ...]
    total: int
    limited: bool


def chosen_rows(total: int, samples: int, choice: RowSelection, seed: int) -> list[int]:
    """Return the indices of ``samples`` out of ``total`` rows, ascending; all rows if there are no more."""
    if choice == "first" or samples >= total:
        return list(range(min(samples, total)))
    return sorted(Random(seed).sample(range(total), samples))


def read_chosen(repository: Repository, paths: Sequence[str], columns: Collection[str], samples: int, seed: int) -> SelectedRows:
    """Choose random rows from the files ``paths``, which are all JSON or all Parquet.

    For Parquet, the row count comes from the footers, and only row groups with chosen rows are read. If those exceed
    ``limits.DATASET_BYTES``, rows are chosen from random row groups that fit together. JSON lines are read up to that total size.
    Raises the errors of `read_rows`.
    """
    if paths[0].endswith(".parquet"):
        return _of_parquet(repository, paths, columns, samples, seed)
    return _of_json(repository, paths, samples, seed)


def _of_json(repository: Repository, paths: Sequence[str], samples: int, seed: int) -> SelectedRows:
    read: list[JsonRows] = []
    size, whole = 0, True
    for path in paths:
        if read and size + repository.files[path] > limits.DATASET_BYTES:
            whole = False
            break
        file = repository.open(path)
        read.append(JsonRows(file))
        size, whole = size + file.size, whole and read[-1].whole
    ends = list(accumulate(each.rows for each in read))
    rows = chosen_rows(ends[-1], samples, "random", seed)
    values = [value for each, end in zip(read, ends, strict=True) for value in each.read(_inside(rows, end - each.rows, end))]
    return SelectedRows(tuple(values), tuple(rows), ends[-1], not whole)


def _of_parquet(repository: Repository, paths: Sequence[str], columns: Collection[str], samples: int, seed: int) -> SelectedRows:
    spans, first = [], {}
    start = 0
    for path in paths[:_PARQUET_FILES]:
        first[path] = start
        file = repository.open(path)
        for rows, size in ParquetRows(file, columns).groups():
            spans.append(_Span(start, rows, size))
            start += rows
    among, chosen = spans, _rows_in(spans, samples, seed)
    if sum(span.bytes for span in spans if span.has_any(chosen)) > limits.DATASET_BYTES:
        among = _within_budget(spans, seed)
        chosen = _rows_in(among, samples, seed)
    values: list[tuple[str, Any]] = []
    for path, end in zip(first, [*list(first.values())[1:], start], strict=True):
        if inside := _inside(chosen, first[path], end):
            file = repository.open(path)
            values += ParquetRows(file, columns).read(inside)
    if len(values) != len(chosen):
        raise InvalidData(f"{quoted(repository.ref)} has Parquet files with fewer rows than their footers say.")
    total = sum(span.rows for span in among)
    limited = len(among) < len(spans) or len(paths) > _PARQUET_FILES
    return SelectedRows(tuple(values), tuple(chosen), total, limited)


@dataclass(frozen=True, slots=True)
class _Span:
    """A row group: ``rows`` rows from ``start``, counted across all files."""

    start: int
    rows: int
    bytes: int

    def has_any(self, rows: Sequence[int]) -> bool:
        """Return whether any of ``rows``, ascending, is in this row group."""
        index = bisect_left(rows, self.start)
        return index < len(rows) and rows[index] < self.start + self.rows


def _rows_in(spans: Sequence[_Span], samples: int, seed: int) -> list[int]:
    """Choose random rows of ``spans``, which are in order; indices count across all files."""
    ends = list(accumulate(span.rows for span in spans))
    rows = []
    for index in chosen_rows(ends[-1] if ends else 0, samples, "random", seed):
        span = bisect_right(ends, index)
        rows.append(spans[span].start + index - (ends[span] - spans[span].rows))
    return rows


def _within_budget(spans: Sequence[_Span], seed: int) -> list[_Span]:
    """Choose row groups in random order up to ``limits.DATASET_BYTES``, at least one, and sort them by position."""
    shuffled = Random(seed).sample(spans, len(spans))
    sizes = accumulate(span.bytes for span in shuffled)
    taken = [span for span, size in zip(shuffled, sizes, strict=True) if size <= limits.DATASET_BYTES] or shuffled[:1]
    return sorted(taken, key=lambda span: span.start)


def _inside(rows: Sequence[int], start: int, end: int) -> list[int]:
    """Return the indices in [start, end), relative to ``start``."""
    return [row - start for row in rows if start <= row < end]
