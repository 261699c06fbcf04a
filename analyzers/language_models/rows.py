"""Rows of data files: one JSON object per line, a JSON list of objects, or Parquet. Reads no more than requested."""

import io
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from analyzers import limits
from analyzers.checkpoints import RangeFile, quoted, read_range
from analyzers.errors import InvalidData, LimitExceeded

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

ENDINGS = (".parquet", ".jsonl", ".json")
_PIECE = 1 << 20
_LINE_BYTES = 16 * limits.PAIR_CHARACTERS
_LINES = 1_000_000
_FOOTER_BYTES = 10_000_000
_BATCH_ROWS = 64
_BATCH_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows that can only be read together: their number, and their size in ``bytes``."""

    rows: int
    bytes: int


def read_rows(file: RangeFile, columns: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yield (source location, value) of each row, in order; for Parquet, only the existing ``columns``.

    Raises InvalidData, naming the line or row, if the content does not match the file extension; LimitExceeded.
    """
    if file.path.endswith(".parquet"):
        yield from ParquetRows(file, columns).read()
    elif _first_character(file) == b"[":
        yield from _list(file)
    else:
        for number, line in _lines(file):
            where = f"line {number} of {quoted(file.path)}"
            yield where, _parsed(line, where)
        if file.size > limits.DATASET_BYTES:
            most = f"{limits.DATASET_BYTES:,} bytes of {quoted(file.path)} (MANTISSA_DATASET_BYTES)"
            raise LimitExceeded(f"Too few samples in the first {most}.")


class JsonRows:
    """The rows of a JSON file for sparse random access: all are held as text, up to ``limits.DATASET_BYTES``.

    whole: whether the whole file was read. Raises as `read_rows`; invalid JSON lines raise only when read.
    """

    def __init__(self, file: RangeFile) -> None:
        self._file = file
        as_list = _first_character(file) == b"["
        self._entries = [row for _, row in _list(file)] if as_list else None
        self._lines = [] if as_list else list(islice(_lines(file), _LINES))
        self.whole = file.size <= limits.DATASET_BYTES and len(self._lines) < _LINES
        self.rows = len(self._lines if self._entries is None else self._entries)

    def read(self, chosen: Collection[int]) -> Iterator[tuple[str, Any]]:
        """Return the rows with these indices, counted from 0, in the given order."""
        for row in chosen:
            if self._entries is not None:
                yield f"entry {row + 1} of {quoted(self._file.path)}", self._entries[row]
            else:
                number, line = self._lines[row]
                where = f"line {number} of {quoted(self._file.path)}"
                yield where, _parsed(line, where)


def _lines(file: RangeFile) -> Iterator[tuple[int, bytes]]:
    """(number, line), counted from 1, of the nonblank lines that end within ``limits.DATASET_BYTES``."""
    for number, line in enumerate(_split(file), start=1):
        if number > _LINES:
            raise LimitExceeded(f"Too few samples in the first {_LINES:,} lines of {quoted(file.path)}.")
        if len(line) > _LINE_BYTES:
            most = f"{_LINE_BYTES:,} bytes (16 times MANTISSA_PAIR_CHARACTERS)"
            raise LimitExceeded(f"Line {number} of {quoted(file.path)} is longer than {most}.")
        if line.strip():
            yield number, line


def _split(file: RangeFile) -> Iterator[bytes]:
    """Lines without their terminators. A line that is too long is cut off where reading stopped."""
    rest, end = b"", min(file.size, limits.DATASET_BYTES)
    for offset in range(_byte_order_mark(file), end, _PIECE):
        *whole, rest = (rest + read_range(file, offset, min(_PIECE, end - offset))).split(b"\n")
        yield from whole
        if len(rest) > _LINE_BYTES:
            break
    if file.size <= limits.DATASET_BYTES or len(rest) > _LINE_BYTES:
        yield rest


def _list(file: RangeFile) -> Iterator[tuple[str, Any]]:
    if file.size > limits.DATASET_BYTES:
        raise LimitExceeded(
            f"{quoted(file.path)} is one JSON list of {file.size:,} bytes, more than {limits.DATASET_BYTES:,} (MANTISSA_DATASET_BYTES)."
        )
    for number, row in enumerate(_parsed(read_range(file, 0, file.size), quoted(file.path)), start=1):
        yield f"entry {number} of {quoted(file.path)}", row


def _byte_order_mark(file: RangeFile) -> int:
    """Length of the byte order mark in bytes."""
    return 3 if read_range(file, 0, min(file.size, 3)) == b"\xef\xbb\xbf" else 0


def _first_character(file: RangeFile) -> bytes:
    start = _byte_order_mark(file)
    return read_range(file, start, min(file.size - start, 1024)).lstrip()[:1]


def _parsed(content: bytes, where: str) -> Any:
    try:
        return json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        if isinstance(error, json.JSONDecodeError) and error.msg == "Extra data" and error.doc.lstrip()[:1] == "[":
            raise InvalidData(
                f"{where} begins with a JSON list, and more follows in line {error.lineno}: give one JSON object per line."
            ) from None
        raise InvalidData(f"{where[:1].upper()}{where[1:]} is not JSON: give one JSON object per line.") from None


class ParquetRows:
    """The rows of a Parquet file, restricted to its ``columns``. Raises InvalidData if it is not a Parquet file, LimitExceeded for a row
    group that is too large.
    """

    def __init__(self, file: RangeFile, columns: Collection[str]) -> None:
        self._file = file
        self._columns = columns

    def groups(self) -> list[RowGroup]:
        """Its row groups, from the footer only. A file without any of the columns counts as the one row that `read` returns."""
        _, wanted, table = self._open()
        metadata = table.metadata
        if not wanted:
            return [RowGroup(1, 0)]
        return [
            RowGroup(max(0, group.num_rows), sum(_compressed(group, number) for number in _wanted(group, wanted)))
            for group in map(metadata.row_group, range(metadata.num_row_groups))
        ]

    def read(self, chosen: Collection[int] | None = None) -> Iterator[tuple[str, Any]]:
        """Read all rows in order, or those with the indices ``chosen``, counted from 0: only their row groups are read.

        A file without any of the columns yields one row of its own columns, for the error that names them.
        """
        path, number = self._file.path, 0
        try:
            fields, wanted, table = self._open()
            for group in range(table.num_row_groups if wanted else 0):
                rows = table.metadata.row_group(group).num_rows
                if chosen is not None and not any(number <= row < number + rows for row in chosen):
                    number += rows
                    continue
                _check_size(table.metadata.row_group(group), wanted, path)
                for batch in table.iter_batches(_BATCH_ROWS, row_groups=[group], columns=wanted, use_threads=False):
                    for row in _rows(batch, path):
                        number += 1
                        if chosen is None or number - 1 in chosen:
                            yield f"row {number} of {quoted(path)}", row
        except _arrow_errors():
            raise InvalidData(f"{quoted(path)} is no Parquet file that can be read (after {number:,} rows).") from None
        if not wanted:
            yield f"row 1 of {quoted(path)}", dict.fromkeys(fields, "")

    def _open(self) -> "tuple[list[str], list[str], ParquetFile]":
        """All column names, the requested ones, and the table."""
        from pyarrow import parquet

        file = self._file
        footer = int.from_bytes(read_range(file, max(0, file.size - 8), min(8, file.size))[:4], "little")
        if footer > min(file.size, _FOOTER_BYTES):
            raise InvalidData(f"{quoted(file.path)} is no Parquet file, or has a footer of {footer:,} bytes.")
        options = {"thrift_string_size_limit": _FOOTER_BYTES, "thrift_container_size_limit": _FOOTER_BYTES}
        try:
            metadata = parquet.ParquetFile(_Seekable(file), **options).metadata
            fields = metadata.schema.to_arrow_schema()
            leaves = [metadata.schema.column(number) for number in range(metadata.num_columns)]
            # each dictionary entry is stored once, also in lists, until its expanded size is known
            texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY" and leaf.logical_type.type != "DECIMAL"]
            table = parquet.ParquetFile(_Seekable(file), **options, metadata=metadata, read_dictionary=texts)
        except _arrow_errors():
            raise InvalidData(f"{quoted(file.path)} is no Parquet file that can be read (after 0 rows).") from None
        return fields.names, [name for name in fields.names if name in self._columns], table


def _arrow_errors() -> tuple[type[Exception], ...]:
    """Context manager that translates the errors pyarrow raises for a damaged file."""
    from pyarrow import ArrowException

    return ArrowException, OSError, ValueError


def _rows(batch: Any, path: str) -> Iterator[dict[str, Any]]:
    """The rows of a batch; one at a time if expanding dictionary-encoded texts for all rows together would not fit.

    Raises LimitExceeded for a single row that does not fit.
    """
    if sum(map(_written_out, batch.columns)) <= _BATCH_BYTES:
        yield from batch.to_pylist()
        return
    for number in range(batch.num_rows):
        row = batch.slice(number, 1)
        _check(sum(map(_written_out, row.columns)), "row", path)
        yield row.to_pylist()[0]


def _written_out(values: Any) -> int:
    """Size in bytes of an array with its dictionary expanded."""
    from pyarrow import compute, types

    if types.is_dictionary(values.type):
        return compute.sum(compute.binary_length(values.dictionary).take(values.indices)).as_py() or 0
    if types.is_struct(values.type):
        return sum(map(_written_out, values.flatten()))
    if types.is_map(values.type):
        return _written_out(values.keys) + _written_out(values.items)
    if types.is_list(values.type) or types.is_large_list(values.type) or types.is_fixed_size_list(values.type):
        return _written_out(values.flatten())
    return int(values.nbytes)


def _check_size(group: Any, wanted: Collection[str], path: str) -> None:
    """Runs of equal values take no storage; in lists, where a row may have any number of values, each counts as a number."""
    size = 0
    for number in _wanted(group, wanted):
        part = group.column(number)
        longer = part.num_values > group.num_rows
        size += max(part.total_uncompressed_size, 8 * part.num_values if longer else 0)
    _check(size, "row group", path)


def _wanted(group: Any, wanted: Collection[str]) -> Iterator[int]:
    """Leaf indices of the ``wanted`` columns."""
    return (number for number in range(group.num_columns) if group.column(number).path_in_schema.partition(".")[0] in wanted)


def _compressed(group: Any, number: int) -> int:
    return max(0, int(group.column(number).total_compressed_size))


def _check(size: int, what: str, path: str) -> None:
    if not 0 <= size <= limits.DATASET_BYTES:
        most = f"{limits.DATASET_BYTES:,} (MANTISSA_DATASET_BYTES)"
        raise LimitExceeded(f"A {what} of {quoted(path)} has {size:,} bytes, more than {most}.")


class _Seekable(io.RawIOBase):
    """File object around a `RangeFile`, for pyarrow."""

    def __init__(self, file: RangeFile) -> None:
        self._file = file
        self._offset = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._offset = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._offset, io.SEEK_END: self._file.size}[whence]
        return self._offset

    def tell(self) -> int:
        return self._offset

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        count = max(0, min(len(view), self._file.size - self._offset))
        self._file.read_into(self._offset, view[:count])
        self._offset += count
        return count
