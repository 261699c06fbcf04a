"""Chooses rows of data files: one JSON object per line, a JSON list of objects, or Parquet; reads no more than needed.

The random choice is ``random.Random(seed).sample(range(rows), samples)`` from Python's standard library: the same rows as
``random.seed(seed)`` and ``random.sample`` of a list of all rows give, as in many notebooks.
"""

import io
import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Any, Literal

from analyzers.checkpoints import RangeFile, Repository, quoted, read_range
from analyzers.core import limits
from analyzers.core.errors import InvalidCheckpoint, InvalidData, LimitExceeded
from analyzers.core.untrusted_json import InvalidJson, parse_json
from analyzers.language_models.limited_call import limited_call

RowSelection = Literal["random", "first"]
ENDINGS = (".parquet", ".jsonl", ".json")
_PIECE = 1 << 20
_LINE_BYTES = 16 * limits.PAIR_CHARACTERS
_LINES = 1_000_000
_BATCH_ROWS = 8  # a text may be repeated without taking space in the file
_FOOTER_BYTES = 10_000_000
_MAGIC = b"PAR1"


class _TooManyLines(LimitExceeded):
    """A file has more than `_LINES` lines."""


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

    Rows are chosen at random among those of the first ``limits.DATASET_BYTES``, and of the first `_LINES` lines of a file. Of Parquet, the
    row count comes from the footers, and only row groups with chosen rows are read. Raises InvalidData, naming the line or row, if the
    content does not match the file extension; LimitExceeded.
    """
    kind: type[_Lines | _Table] = _Table if paths[0].endswith(".parquet") else _Lines
    if choice == "first":
        values = tuple(islice((row for path in paths for row in kind(repository.open(path), columns).first()), samples))
        return Rows(values, tuple(range(len(values))))
    files, total, size, limited = [], 0, 0, False
    for path in paths:
        file = kind(repository.open(path), columns, limits.DATASET_BYTES - size)
        files.append((total, file))
        total, size, limited = total + file.rows, size + file.size, limited or file.limited
        if limited:
            break
    rows = chosen_rows(total, samples, "random", seed)
    chosen = [value for first, file in files for value in file.chosen({row - first for row in rows if first <= row < first + file.rows})]
    if len(chosen) != len(rows):
        raise InvalidData(f"{quoted(repository.ref)} has Parquet files with fewer rows than their footers say.")
    return Rows(tuple(chosen), tuple(rows), total, limited or len(files) < len(paths))


class _Lines:
    """A file of JSON lines, or of a JSON list. rows, size: entries and bytes within the ``budget``; limited: whether the file has more.

    Entries are held as text, since parsed values take more memory; an invalid line raises whether it is chosen or not.
    """

    def __init__(self, file: RangeFile, columns: Collection[str], budget: int = 0) -> None:
        self._file = file
        self._entries: list[tuple[str, Any]] = []
        self.limited = file.size > budget
        try:
            for where, entry in _entries(file, budget) if budget else ():
                _parsed(entry, where)
                self._entries.append((where, entry))
        except _TooManyLines:
            self.limited = True
        self.rows, self.size = len(self._entries), min(file.size, budget)

    def first(self) -> Iterator[tuple[str, Any]]:
        """Yield the rows in order."""
        for where, entry in _entries(self._file, limits.DATASET_BYTES):
            yield where, _parsed(entry, where)
        if self._file.size > limits.DATASET_BYTES:
            most = f"{limits.DATASET_BYTES:,} bytes of {quoted(self._file.path)} (MANTISSA_DATASET_BYTES)"
            raise LimitExceeded(f"Too few samples in the first {most}.")

    def chosen(self, rows: Collection[int]) -> Iterator[tuple[str, Any]]:
        """Yield the rows with these indices, in order."""
        for row in sorted(rows):
            where, entry = self._entries[row]
            yield where, _parsed(entry, where)


def _entries(file: RangeFile, budget: int) -> Iterator[tuple[str, Any]]:
    """Yield the location of each entry of a JSON list with its value, or of each line that is not blank with its text.

    A line that does not end within ``budget`` bytes is left out.
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
    with io.BufferedReader(_Seekable(file, budget), _PIECE) as lines:
        lines.seek(start)
        for number in range(1, _LINES + 2):
            line = lines.readline(_LINE_BYTES + 1)
            if len(line) > _LINE_BYTES:
                raise LimitExceeded(f"Line {number} of {name} is longer than {_LINE_BYTES:,} bytes.")
            if not line or (file.size > budget and not line.endswith(b"\n")):
                return
            if number > _LINES:
                raise _TooManyLines(f"Too few samples in the first {_LINES:,} lines of {name}.")
            if line.strip():
                yield f"line {number} of {name}", line


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
    """A Parquet file, restricted to its ``columns``. Opening it reads only the footer. Raises InvalidData if it is not a Parquet file.

    rows, size: those of its row groups that fit into the ``budget`` of bytes, the first in any case; limited: whether it has more.
    """

    def __init__(self, file: RangeFile, columns: Collection[str], budget: int | None = None) -> None:
        from pyarrow import ArrowException, parquet

        self._name, self._damaged = quoted(file.path), (ArrowException, OSError, ValueError)
        _check_footer(file)
        self._parquet = parquet.ParquetFile(_Seekable(file, file.size), buffer_size=_PIECE)
        fields = self._parquet.schema_arrow.names
        self._wanted = [name for name in fields if name in columns]
        # A file without any of the columns counts as one row of its own columns, for the error that names them.
        self._other = None if self._wanted else dict.fromkeys(fields, "")
        every = [] if self._other is not None else list(map(self._parquet.metadata.row_group, range(self._parquet.num_row_groups)))
        self._groups, self.size, self.limited = list[int](), 0, False
        for group in every:
            self.limited = budget is not None and bool(self._groups) and self.size + group.total_byte_size > budget
            if self.limited:
                break
            self._groups.append(max(0, group.num_rows))
            self.size += max(0, group.total_byte_size)
        self.rows = 1 if self._other is not None else sum(self._groups)

    def first(self) -> Iterator[tuple[str, Any]]:
        """Yield all rows in order."""
        return self.chosen(range(self.rows))

    def chosen(self, rows: Collection[int]) -> Iterator[tuple[str, Any]]:
        """Yield the rows with these indices, in order: only their row groups are read."""
        if self._other is not None:
            if rows:
                yield f"row 1 of {self._name}", self._other
            return
        done = 0
        try:
            for index, count in enumerate(self._groups):
                first, done = done, done + count
                if not any(row in rows for row in range(first, done)):
                    continue
                for batch in self._parquet.iter_batches(_BATCH_ROWS, row_groups=[index], columns=self._wanted, use_threads=False):
                    for row in range(first, first + batch.num_rows):
                        if row in rows:
                            yield f"row {row + 1} of {self._name}", batch.slice(row - first, 1).to_pylist()[0]
                    first += batch.num_rows
        except self._damaged:
            raise InvalidData(f"{self._name} is not a Parquet file that can be read (after {done:,} rows).") from None


def _check_footer(file: RangeFile) -> None:
    """Parse the footer of a Parquet file in a process with limits: pyarrow may abort on one that is damaged. Raises InvalidData."""
    damaged = InvalidData(f"{quoted(file.path)} is not a Parquet file that can be read.")
    end = read_range(file, max(0, file.size - 8), min(file.size, 8))
    length = int.from_bytes(end[:4], "little")
    if end[4:] != _MAGIC or length + 12 > file.size or length > _FOOTER_BYTES:
        raise damaged
    footer = read_range(file, file.size - 8 - length, length)

    def parse() -> list[str]:
        from pyarrow import parquet

        names: list[str] = parquet.ParquetFile(io.BytesIO(_MAGIC + footer + end)).schema_arrow.names
        return names

    try:
        limited_call("The footer", parse, limits.TOKENIZER_MEMORY, limits.TOKENIZER_SECONDS, lambda: None)
    except (InvalidCheckpoint, LimitExceeded):
        raise damaged from None


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
