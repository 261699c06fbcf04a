"""Rows of files of data: one JSON object per line, a JSON list of objects, or Parquet. No more is read than is asked for."""

import io
import json
from collections.abc import Collection, Iterator
from typing import Any

from analyzers import limits
from analyzers.checkpoints import RangeFile, quoted, read_range
from analyzers.errors import InvalidData, LimitExceeded

ENDINGS = (".parquet", ".jsonl", ".json")
_PIECE = 1 << 20
_LINE_BYTES = 16 * limits.PAIR_CHARACTERS
_LINES = 1_000_000
_FOOTER_BYTES = 10_000_000
_BATCH_ROWS = 64
_BATCH_BYTES = 32 << 20


def read_rows(file: RangeFile, columns: Collection[str]) -> Iterator[tuple[str, Any]]:
    """(where it stands, value) of each row, in order; of Parquet the ``columns`` alone that it has.

    Raises InvalidData, naming the line or row, for what is not in the form that the file's name promises; LimitExceeded.
    """
    if file.path.endswith(".parquet"):
        yield from _parquet(file, columns)
    elif _first_character(file) == b"[":
        yield from _list(file)
    else:
        yield from _lines(file)


def _lines(file: RangeFile) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(_split(file), start=1):
        if number > _LINES:
            raise LimitExceeded(f"Too few samples in the first {_LINES:,} lines of {quoted(file.path)}.")
        if len(line) > _LINE_BYTES:
            most = f"{_LINE_BYTES:,} bytes (16 times MANTISSA_PAIR_CHARACTERS)"
            raise LimitExceeded(f"Line {number} of {quoted(file.path)} is longer than {most}.")
        if line.strip():
            where = f"line {number} of {quoted(file.path)}"
            yield where, _parsed(line, where)


def _split(file: RangeFile) -> Iterator[bytes]:
    """Lines without their ends. One that is too long comes as what was read of it."""
    rest = b""
    for offset in range(_byte_order_mark(file), min(file.size, limits.DATASET_BYTES), _PIECE):
        *whole, rest = (rest + read_range(file, offset, min(_PIECE, file.size - offset))).split(b"\n")
        yield from whole
        if len(rest) > _LINE_BYTES:
            break
    if file.size > limits.DATASET_BYTES and len(rest) <= _LINE_BYTES:
        raise LimitExceeded(f"Too few samples in the first {limits.DATASET_BYTES:,} bytes of {quoted(file.path)} (MANTISSA_DATASET_BYTES).")
    yield rest


def _list(file: RangeFile) -> Iterator[tuple[str, Any]]:
    if file.size > limits.DATASET_BYTES:
        raise LimitExceeded(
            f"{quoted(file.path)} is one JSON list of {file.size:,} bytes, more than {limits.DATASET_BYTES:,} (MANTISSA_DATASET_BYTES)."
        )
    for number, row in enumerate(_parsed(read_range(file, 0, file.size), quoted(file.path)), start=1):
        yield f"entry {number} of {quoted(file.path)}", row


def _byte_order_mark(file: RangeFile) -> int:
    """How many bytes it takes."""
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


def _parquet(file: RangeFile, columns: Collection[str]) -> Iterator[tuple[str, Any]]:
    from pyarrow import ArrowException, parquet

    footer = int.from_bytes(read_range(file, max(0, file.size - 8), min(8, file.size))[:4], "little")
    if footer > min(file.size, _FOOTER_BYTES):
        raise InvalidData(f"{quoted(file.path)} is no Parquet file, or has a footer of {footer:,} bytes.")
    number = 0
    try:
        options = {"thrift_string_size_limit": _FOOTER_BYTES, "thrift_container_size_limit": _FOOTER_BYTES}
        metadata = parquet.ParquetFile(_Seekable(file), **options).metadata
        fields = metadata.schema.to_arrow_schema()
        wanted = [name for name in fields.names if name in columns]
        leaves = [metadata.schema.column(number) for number in range(metadata.num_columns)]
        # each text of a dictionary is held once, also in lists, until it is known how much they are written out
        texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY" and leaf.logical_type.type != "DECIMAL"]
        table = parquet.ParquetFile(_Seekable(file), **options, metadata=metadata, read_dictionary=texts)
        for group in range(table.num_row_groups if wanted else 0):
            _check_size(table.metadata.row_group(group), wanted, file.path)
            for batch in table.iter_batches(_BATCH_ROWS, row_groups=[group], columns=wanted, use_threads=False):
                for row in _rows(batch, file.path):
                    number += 1
                    yield f"row {number} of {quoted(file.path)}", row
    except (ArrowException, OSError, ValueError):
        raise InvalidData(f"{quoted(file.path)} is no Parquet file that can be read (after {number:,} rows).") from None
    if not wanted:  # whoever asked says what there is instead
        yield f"row 1 of {quoted(file.path)}", dict.fromkeys(fields.names, "")


def _rows(batch: Any, path: str) -> Iterator[dict[str, Any]]:
    """The rows of a batch; one by one where a few texts of a dictionary, each read once, stand in so many places that they would not fit.

    Raises LimitExceeded for a row that does not fit by itself.
    """
    if sum(map(_written_out, batch.columns)) <= _BATCH_BYTES:
        yield from batch.to_pylist()
        return
    for number in range(batch.num_rows):
        row = batch.slice(number, 1)
        _check(sum(map(_written_out, row.columns)), "row", path)
        yield row.to_pylist()[0]


def _written_out(values: Any) -> int:
    """Bytes of an array in which each text stands for itself."""
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
    """A run of equal values takes no room: in a list, where as many as there are stand in one row, each counts as a number."""
    size = 0
    for number in range(group.num_columns):
        part = group.column(number)
        if part.path_in_schema.partition(".")[0] in wanted:
            longer = part.num_values > group.num_rows
            size += max(part.total_uncompressed_size, 8 * part.num_values if longer else 0)
    _check(size, "row group", path)


def _check(size: int, what: str, path: str) -> None:
    if not 0 <= size <= limits.DATASET_BYTES:
        most = f"{limits.DATASET_BYTES:,} (MANTISSA_DATASET_BYTES)"
        raise LimitExceeded(f"A {what} of {quoted(path)} has {size:,} bytes, more than {most}.")


class _Seekable(io.RawIOBase):
    """A `RangeFile` as the kind of file that pyarrow reads."""

    def __init__(self, file: RangeFile) -> None:
        self._file = file
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._place = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._file.size}[whence]
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        count = max(0, min(len(view), self._file.size - self._place))
        self._file.read_into(self._place, view[:count])
        self._place += count
        return count
