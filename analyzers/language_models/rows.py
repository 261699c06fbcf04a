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
    from pyarrow import ArrowException, parquet, types

    footer = int.from_bytes(read_range(file, max(0, file.size - 8), min(8, file.size))[:4], "little")
    if footer > min(file.size, _FOOTER_BYTES):
        raise InvalidData(f"{quoted(file.path)} is no Parquet file, or has a footer of {footer:,} bytes.")
    number = 0
    try:
        options = {"thrift_string_size_limit": _FOOTER_BYTES, "thrift_container_size_limit": _FOOTER_BYTES}
        metadata = parquet.ParquetFile(_Seekable(file), **options).metadata
        fields = metadata.schema.to_arrow_schema()
        wanted = [name for name in fields.names if name in columns]
        texts = [name for name in wanted if types.is_string(fields.field(name).type)]
        table = parquet.ParquetFile(_Seekable(file), **options, metadata=metadata, read_dictionary=texts)
        for group in range(table.num_row_groups if wanted else 0):
            _check_size(table.metadata.row_group(group), wanted, file.path)
            for batch in table.iter_batches(_BATCH_ROWS, row_groups=[group], columns=wanted, use_threads=False):
                for row in _rows(batch):
                    number += 1
                    yield f"row {number} of {quoted(file.path)}", row
    except (ArrowException, OSError, ValueError):
        raise InvalidData(f"{quoted(file.path)} is no Parquet file that can be read (after {number:,} rows).") from None
    if not wanted:  # whoever asked says what there is instead
        yield f"row 1 of {quoted(file.path)}", dict.fromkeys(fields.names, "")


def _rows(batch: Any) -> Iterator[dict[str, Any]]:
    """The rows of a batch; one by one where a few texts of a dictionary, each read once, stand in so many rows that they would not fit."""
    from pyarrow import compute, types

    size = 0
    for column in (each for each in batch.columns if types.is_dictionary(each.type)):
        lengths = compute.binary_length(column.dictionary).take(column.indices)
        size += compute.sum(lengths).as_py() or 0
    if size <= _BATCH_BYTES:
        yield from batch.to_pylist()
        return
    for number in range(batch.num_rows):
        yield batch.slice(number, 1).to_pylist()[0]


def _check_size(group: Any, wanted: Collection[str], path: str) -> None:
    parts = [group.column(number) for number in range(group.num_columns)]
    size = sum(part.total_uncompressed_size for part in parts if part.path_in_schema.split(".")[0] in wanted)
    if not 0 <= size <= limits.DATASET_BYTES:
        most = f"{limits.DATASET_BYTES:,} (MANTISSA_DATASET_BYTES)"
        raise LimitExceeded(f"A row group of {quoted(path)} has {size:,} bytes, more than {most}.")


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
