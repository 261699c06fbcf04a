"""Reads rows of data files: one JSON object per line, a JSON list of objects, or Parquet. Reads no more than requested."""

import io
import json
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from analyzers.checkpoints import RangeFile, quoted, read_range
from analyzers.core import limits
from analyzers.core.errors import InvalidData, LimitExceeded
from analyzers.core.untrusted_json import InvalidJson, parse_json

ENDINGS = (".parquet", ".jsonl", ".json")
_PIECE = 1 << 20
_LINE_BYTES = 16 * limits.PAIR_CHARACTERS
_LINES = 1_000_000
_FOOTER_BYTES = 10_000_000
_BATCH_ROWS = 64
_LOOK_SECONDS = 20
_BATCH_BYTES = 32 << 20


def read_rows(file: RangeFile, columns: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yield (source location, value) of each row, in order; for Parquet, only the existing ``columns``.

    Raises InvalidData, naming the line or row, if the content does not match the file extension; LimitExceeded.
    """
    if file.path.endswith(".parquet"):
        yield from ParquetRows(file, columns).read()
        return
    for number, entry in _entries(file):
        yield _parsed_entry(file, number, entry)
    if file.size > limits.DATASET_BYTES:
        most = f"{limits.DATASET_BYTES:,} bytes of {quoted(file.path)} (MANTISSA_DATASET_BYTES)"
        raise LimitExceeded(f"Too few samples in the first {most}.")


class JsonRows:
    """The rows of a JSON file for sparse random access, held as text, up to ``limits.DATASET_BYTES``.

    whole: whether the whole file was read. Raises as `read_rows`; invalid JSON lines raise only when read.
    """

    def __init__(self, file: RangeFile) -> None:
        self._file = file
        self._entries = list(islice(_entries(file), _LINES))
        self.rows = len(self._entries)
        self.whole = file.size <= limits.DATASET_BYTES and self.rows < _LINES

    def read(self, chosen: Collection[int]) -> Iterator[tuple[str, Any]]:
        """Yield the rows with these indices, counted from 0, in the given order."""
        for row in chosen:
            yield _parsed_entry(self._file, *self._entries[row])


def _entries(file: RangeFile) -> Iterator[tuple[int, Any]]:
    """Yield (number, value), counted from 1, of the entries of a JSON list, or (number, text) of nonblank lines.

    Lines that do not end within ``limits.DATASET_BYTES`` are left out.
    """
    if _first_character(file) == b"[":
        if file.size > limits.DATASET_BYTES:
            most = f"{limits.DATASET_BYTES:,} (MANTISSA_DATASET_BYTES)"
            raise LimitExceeded(f"{quoted(file.path)} is one JSON list of {file.size:,} bytes, more than {most}.")
        yield from enumerate(_parsed(read_range(file, 0, file.size), quoted(file.path)), start=1)
        return
    for number, line in enumerate(_split(file), start=1):
        if number > _LINES:
            raise LimitExceeded(f"Too few samples in the first {_LINES:,} lines of {quoted(file.path)}.")
        if len(line) > _LINE_BYTES:
            raise LimitExceeded(f"Line {number} of {quoted(file.path)} is longer than {_LINE_BYTES:,} bytes.")
        if line.strip():
            yield number, line


def _parsed_entry(file: RangeFile, number: int, entry: Any) -> tuple[str, Any]:
    """Return the source location of an entry, and its value: a line is parsed."""
    if not isinstance(entry, bytes):
        return f"entry {number} of {quoted(file.path)}", entry
    where = f"line {number} of {quoted(file.path)}"
    return where, _parsed(entry, where)


def _split(file: RangeFile) -> Iterator[bytes]:
    """Yield lines without their terminators. A line that is too long is cut where reading stopped."""
    rest, end = b"", min(file.size, limits.DATASET_BYTES)
    for offset in range(_byte_order_mark(file), end, _PIECE):
        *whole, rest = (rest + read_range(file, offset, min(_PIECE, end - offset))).split(b"\n")
        yield from whole
        if len(rest) > _LINE_BYTES:
            break
    if file.size <= limits.DATASET_BYTES or len(rest) > _LINE_BYTES:
        yield rest


def _byte_order_mark(file: RangeFile) -> int:
    """Return the length in bytes of the byte order mark, 0 without one."""
    return 3 if read_range(file, 0, min(file.size, 3)) == b"\xef\xbb\xbf" else 0


def _first_character(file: RangeFile) -> bytes:
    start = _byte_order_mark(file)
    return read_range(file, start, min(file.size - start, 1024)).lstrip()[:1]


def _parsed(content: bytes, where: str) -> Any:
    try:
        return parse_json(content, lenient=True)
    except InvalidJson as error:
        fault = error.__cause__
        if isinstance(fault, json.JSONDecodeError) and fault.msg == "Extra data" and fault.doc.lstrip()[:1] == "[":
            raise InvalidData(
                f"{where} begins with a JSON list, and more follows in line {fault.lineno}: give one JSON object per line."
            ) from None
        why = "is not JSON" if isinstance(fault, json.JSONDecodeError) else str(error)
        raise InvalidData(f"{where[:1].upper()}{where[1:]} {why}: give one JSON object per line.") from None


class ParquetRows:
    """The rows of a Parquet file, restricted to its ``columns``. Opening it reads only the footer.

    Raises InvalidData if it is not a Parquet file, LimitExceeded for a row group that is too large.
    """

    def __init__(self, file: RangeFile, columns: Collection[str]) -> None:
        from pyarrow import parquet

        self._path = file.path
        footer = int.from_bytes(read_range(file, max(0, file.size - 8), min(8, file.size))[:4], "little")
        if footer > min(file.size - 8, _FOOTER_BYTES):
            raise InvalidData(f"{quoted(file.path)} is not a Parquet file, or has a footer of {footer:,} bytes.")
        if not _is_readable(read_range(file, file.size - 8 - footer, footer)):
            raise InvalidData(f"{quoted(file.path)} is not a Parquet file that can be read: its footer is damaged.")
        options = {"thrift_string_size_limit": _FOOTER_BYTES, "thrift_container_size_limit": _FOOTER_BYTES}
        self._done = 0  # rows read or skipped
        with self._explained():
            self._metadata = parquet.ParquetFile(_Seekable(file), **options).metadata
            self._fields = self._metadata.schema.to_arrow_schema().names
            leaves = [self._metadata.schema.column(number) for number in range(self._metadata.num_columns)]
            # Each dictionary entry is stored once, also in lists, until its expanded size is known.
            texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY" and leaf.logical_type.type != "DECIMAL"]
            self._table = parquet.ParquetFile(_Seekable(file), **options, metadata=self._metadata, read_dictionary=texts)
        self._wanted = [name for name in self._fields if name in columns]

    def groups(self) -> list[tuple[int, int]]:
        """Return (rows, bytes) of each row group. A file without any of the columns counts as the one row that `read` returns."""
        if not self._wanted:
            return [(1, 0)]
        groups = map(self._metadata.row_group, range(self._metadata.num_row_groups))
        return [(max(0, group.num_rows), sum(max(0, int(leaf.total_compressed_size)) for leaf in self._leaves(group))) for group in groups]

    def read(self, chosen: Collection[int] | None = None) -> Iterator[tuple[str, Any]]:
        """Read all rows in order, or those with the indices ``chosen``, counted from 0: only their row groups are read.

        A file without any of the columns yields one row of its own columns, for the error that names them.
        """
        if not self._wanted:
            yield f"row 1 of {quoted(self._path)}", dict.fromkeys(self._fields, "")
            return
        with self._explained():
            for index in range(self._table.num_row_groups):
                group = self._metadata.row_group(index)
                if chosen is not None and not any(self._done <= row < self._done + group.num_rows for row in chosen):
                    self._done += group.num_rows
                    continue
                _check(sum(_expanded(leaf, group.num_rows) for leaf in self._leaves(group)), "row group", self._path)
                for batch in self._table.iter_batches(_BATCH_ROWS, row_groups=[index], columns=self._wanted, use_threads=False):
                    for row in _rows(batch, self._path):
                        self._done += 1
                        if chosen is None or self._done - 1 in chosen:
                            yield f"row {self._done} of {quoted(self._path)}", row

    def _leaves(self, group: Any) -> Iterator[Any]:
        """Return the wanted columns' chunks in a row group."""
        leaves = map(group.column, range(group.num_columns))
        return (leaf for leaf in leaves if leaf.path_in_schema.partition(".")[0] in self._wanted)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Context manager that translates the errors pyarrow raises for a damaged file."""
        from pyarrow import ArrowException

        try:
            yield
        except (ArrowException, OSError, ValueError):
            raise InvalidData(f"{quoted(self._path)} is not a Parquet file that can be read (after {self._done:,} rows).") from None


# Reads a file without rows, of the footer alone, on standard input. Threads of this process would hold locks in a fork of it.
_LOOK = """
import io, sys
from pyarrow import parquet

options = {"thrift_string_size_limit": int(sys.argv[1]), "thrift_container_size_limit": int(sys.argv[1])}
metadata = parquet.ParquetFile(io.BytesIO(sys.stdin.buffer.read()), **options).metadata
for group in map(metadata.row_group, range(metadata.num_row_groups)):
    for number in range(group.num_columns):
        group.column(number)
"""


def _is_readable(footer: bytes) -> bool:
    """Return whether a process survives reading the description of every column chunk: pyarrow crashes on some damaged footers."""
    content = b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"
    command = [sys.executable, "-I", "-c", _LOOK, str(_FOOTER_BYTES)]
    try:
        ended = subprocess.run(command, input=content, capture_output=True, timeout=_LOOK_SECONDS, check=False)  # noqa: S603 - ours
    except subprocess.TimeoutExpired:  # a busy machine says nothing about the file
        return True
    return ended.returncode >= 0  # an exception is explained where it is raised here


def _rows(batch: Any, path: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a batch; one at a time if expanding dictionary-encoded strings for all rows together would not fit.

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
    """Return the size in bytes of an array with its dictionary expanded."""
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


def _expanded(leaf: Any, rows: int) -> int:
    """Bound the memory in bytes of a column chunk. Runs of equal values take no storage: in lists, each value counts as a number."""
    return max(int(leaf.total_uncompressed_size), 8 * int(leaf.num_values) if leaf.num_values > rows else 0)


def _check(size: int, what: str, path: str) -> None:
    if not 0 <= size <= limits.DATASET_BYTES:
        most = f"{limits.DATASET_BYTES:,} (MANTISSA_DATASET_BYTES)"
        raise LimitExceeded(f"A {what} of {quoted(path)} has {size:,} bytes, more than {most}.")


class _Seekable(io.RawIOBase):
    """A file object around a `RangeFile`, for pyarrow."""

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
