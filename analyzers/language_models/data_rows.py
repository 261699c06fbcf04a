"""Chooses rows of data files: one JSON object per line, a JSON list of objects, or Parquet; reads no more than needed.

The random choice is ``random.Random(seed).sample(range(rows), samples)`` from Python's standard library: the same rows as
``random.seed(seed)`` and ``random.sample`` of a list of all rows give, as in many notebooks.
"""

import io
import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from random import Random
from typing import Any, Literal

from analyzers.checkpoints import RangeFile, Repository, quoted, read_range
from analyzers.core import limits
from analyzers.core.errors import InvalidData, LimitExceeded
from analyzers.core.untrusted_json import InvalidJson, parse_json

RowSelection = Literal["random", "first"]
ENDINGS = (".parquet", ".jsonl", ".json")
_PIECE = 1 << 20
_LINE_BYTES = 16 * limits.PAIR_CHARACTERS
_LINES = 1_000_000
_BATCH_ROWS = 8  # a text may be repeated without taking space in the file
_FOOTER_BYTES = 10_000_000
# Reading a file's footer takes a few requests before a row can be chosen.
_PARQUET_FILES = 64


@dataclass(frozen=True, slots=True)
class Rows:
    """Chosen rows. values: (source location, value) of each; rows: their indices, counted from 0 across all files, ascending.

    total: number of rows chosen from, None if the others were not counted. limited: whether they were chosen from a part of the data.
    """

    values: tuple[tuple[str, Any], ...]
    rows: tuple[int, ...]
    total: int | None = None
    limited: bool = False


def chosen_rows(total: int, samples: int, choice: RowSelection, seed: int) -> list[int]:
    """Return the indices of ``samples`` out of ``total`` rows, ascending; all rows if there are no more."""
    if choice == "first" or samples >= total:
        return list(range(min(samples, total)))
    return sorted(Random(seed).sample(range(total), samples))


def read_rows(
    repository: Repository, paths: Sequence[str], columns: Collection[str], samples: int, choice: RowSelection = "first", seed: int = 0
) -> Rows:
    """Read the chosen rows of the files ``paths``, which are all JSON or all Parquet; of Parquet only the existing ``columns``.

    Of random rows of Parquet, the row count comes from the footers, and only row groups with chosen rows are read; if those exceed
    ``limits.DATASET_BYTES``, rows are chosen from random row groups that fit together. JSON lines are read up to that total size.
    Raises InvalidData, naming the line or row, if the content does not match the file extension; LimitExceeded.
    """
    parquet = paths[0].endswith(".parquet")
    if choice == "first":
        every = _table_rows(repository, paths, columns) if parquet else _json_rows(repository, paths)
        values = tuple(islice(every, samples))
        return Rows(values, tuple(range(len(values))))
    return (_of_tables if parquet else _of_json)(repository, paths, columns, samples, seed)


def _json_rows(repository: Repository, paths: Sequence[str]) -> Iterator[tuple[str, Any]]:
    for path in paths:
        file = repository.open(path)
        for where, entry in _entries(file):
            yield where, _parsed(entry, where)
        if file.size > limits.DATASET_BYTES:
            most = f"{limits.DATASET_BYTES:,} bytes of {quoted(path)} (MANTISSA_DATASET_BYTES)"
            raise LimitExceeded(f"Too few samples in the first {most}.")


def _of_json(repository: Repository, paths: Sequence[str], columns: Collection[str], samples: int, seed: int) -> Rows:
    """Choose among the rows of JSON files, which are held as text; invalid lines raise only when chosen."""
    entries: list[tuple[str, Any]] = []
    size, limited = 0, False
    for path in paths:
        size += repository.files[path]
        limited |= size > limits.DATASET_BYTES
        if limited and entries:
            break
        file = repository.open(path)
        entries += _entries(file)
    rows = chosen_rows(len(entries), samples, "random", seed)
    return Rows(tuple((entries[row][0], _parsed(entries[row][1], entries[row][0])) for row in rows), tuple(rows), len(entries), limited)


def _entries(file: RangeFile) -> Iterator[tuple[str, Any]]:
    """Yield the location of each entry of a JSON list with its value, or of each line that is not blank with its text.

    A line that does not end within ``limits.DATASET_BYTES`` is left out.
    """
    name, mark = quoted(file.path), len(b"\xef\xbb\xbf")
    start = mark if read_range(file, 0, min(file.size, mark)) == b"\xef\xbb\xbf" else 0
    if read_range(file, start, min(file.size - start, 1024)).lstrip()[:1] == b"[":
        if file.size > limits.DATASET_BYTES:
            most = f"{limits.DATASET_BYTES:,} (MANTISSA_DATASET_BYTES)"
            raise LimitExceeded(f"{name} is one JSON list of {file.size:,} bytes, more than {most}.")
        values = _parsed(read_range(file, 0, file.size), name)
        yield from ((f"entry {number} of {name}", value) for number, value in enumerate(values, start=1))
        return
    with io.BufferedReader(_Seekable(file, limits.DATASET_BYTES), _PIECE) as lines:
        lines.seek(start)
        for number in range(1, _LINES + 1):
            line = lines.readline(_LINE_BYTES + 1)
            if len(line) > _LINE_BYTES:
                raise LimitExceeded(f"Line {number} of {name} is longer than {_LINE_BYTES:,} bytes.")
            if not line or (file.size > limits.DATASET_BYTES and not line.endswith(b"\n")):
                return
            if line.strip():
                yield f"line {number} of {name}", line
    raise LimitExceeded(f"Too few samples in the first {_LINES:,} lines of {name}.")


def _parsed(content: Any, where: str) -> Any:
    """Parse a line; an entry of a list is parsed already."""
    if not isinstance(content, bytes):
        return content
    try:
        return parse_json(content, lenient=True)
    except InvalidJson as error:
        why = "is not JSON" if isinstance(error.__cause__, json.JSONDecodeError) else str(error)
        raise InvalidData(f"{where[:1].upper()}{where[1:]} {why}: give one JSON object per line, or one list.") from None


class _Table:
    """A Parquet file, restricted to its ``columns``. Opening it reads only the footer. Raises InvalidData if it is not a Parquet file."""

    def __init__(self, file: RangeFile, columns: Collection[str]) -> None:
        from pyarrow import ArrowException, parquet

        self._name = quoted(file.path)
        self._damaged = (ArrowException, OSError, ValueError)
        options = {"thrift_string_size_limit": _FOOTER_BYTES, "thrift_container_size_limit": _FOOTER_BYTES}
        try:
            self._parquet = parquet.ParquetFile(_Seekable(file, file.size), **options, buffer_size=_PIECE)
            self._fields = self._parquet.schema_arrow.names
        except self._damaged:
            raise InvalidData(f"{self._name} is not a Parquet file that can be read.") from None
        self._wanted = [name for name in self._fields if name in columns]

    def groups(self) -> list[tuple[int, int]]:
        """Return (rows, bytes) of each row group. A file without any of the columns counts as the one row that `read` returns."""
        groups = map(self._parquet.metadata.row_group, range(self._parquet.num_row_groups))
        return [(max(0, group.num_rows), max(0, group.total_byte_size)) for group in groups] if self._wanted else [(1, 0)]

    def read(self, chosen: Collection[int] | None = None) -> Iterator[tuple[str, Any]]:
        """Read all rows in order, or those with the indices ``chosen``, counted from 0: only their row groups are read.

        A file without any of the columns yields one row of its own columns, for the error that names them.
        """
        if not self._wanted:
            yield f"row 1 of {self._name}", dict.fromkeys(self._fields, "")
            return
        done = 0
        try:
            for index, (rows, _) in enumerate(self.groups()):
                left = None if chosen is None else {row for row in chosen if done <= row < done + rows}
                first, done = done, done + rows
                if left is not None and not left:
                    continue
                for batch in self._parquet.iter_batches(_BATCH_ROWS, row_groups=[index], columns=self._wanted, use_threads=False):
                    for row in range(first, first + batch.num_rows):
                        if left is None or row in left:
                            yield f"row {row + 1} of {self._name}", batch.slice(row - first, 1).to_pylist()[0]
                    first += batch.num_rows
        except self._damaged:
            raise InvalidData(f"{self._name} is not a Parquet file that can be read (after {done:,} rows).") from None


def _table_rows(repository: Repository, paths: Sequence[str], columns: Collection[str]) -> Iterator[tuple[str, Any]]:
    for path in paths:
        file = repository.open(path)
        yield from _Table(file, columns).read()


def _of_tables(repository: Repository, paths: Sequence[str], columns: Collection[str], samples: int, seed: int) -> Rows:
    groups: list[tuple[int, int, int]] = []  # file, first row and bytes of each row group
    starts, total = [0], 0
    ends: list[int] = []
    for number, path in enumerate(paths[:_PARQUET_FILES]):
        file = repository.open(path)
        for rows, size in _Table(file, columns).groups():
            groups.append((number, total, size))
            total += rows
            ends.append(total)
        starts.append(total)
    every = list(range(len(groups)))

    def choose(among: Sequence[int]) -> tuple[int, list[int]]:
        """Return how many rows these groups have, and the rows chosen of them, counted through all files."""
        candidates = [row for group in among for row in range(groups[group][1], ends[group])] if len(among) < len(every) else range(total)
        return len(candidates), [candidates[row] for row in chosen_rows(len(candidates), samples, "random", seed)]

    among, (count, chosen) = every, choose(every)
    touched = {next(group for group in every if row < ends[group]) for row in chosen}
    if sum(groups[group][2] for group in touched) > limits.DATASET_BYTES:
        shuffled = Random(seed).sample(every, len(every))
        sizes = accumulate(groups[group][2] for group in shuffled)
        among = sorted(group for group, size in zip(shuffled, sizes, strict=True) if size <= limits.DATASET_BYTES) or shuffled[:1]
        count, chosen = choose(among)
    values: list[tuple[str, Any]] = []
    for path, first, end in zip(paths, starts, starts[1:], strict=False):
        if inside := [row - first for row in chosen if first <= row < end]:
            file = repository.open(path)
            values += _Table(file, columns).read(inside)
    if len(values) != len(chosen):
        raise InvalidData(f"{quoted(repository.ref)} has Parquet files with fewer rows than their footers say.")
    return Rows(tuple(values), tuple(chosen), count, len(among) < len(every) or len(paths) > _PARQUET_FILES)


class _Seekable(io.RawIOBase):
    """A file object around the first ``size`` bytes of a `RangeFile`."""

    def __init__(self, file: RangeFile, size: int) -> None:
        self._file = file
        self._size = min(size, file.size)
        self._offset = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._offset = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._offset, io.SEEK_END: self._size}[whence]
        return self._offset

    def tell(self) -> int:
        return self._offset

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        count = max(0, min(len(view), self._size - self._offset))
        self._file.read_into(self._offset, view[:count])
        self._offset += count
        return count
