"""Converts items to rows of the dataset's Parquet files, and back. Every row read is untrusted and validated."""

import hashlib
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

from pydantic import ValidationError

from analyzers.checkpoints.repository import RangeFile
from analyzers.core.errors import HubError, InvalidRequest, LimitExceeded, MantissaError
from analyzers.core.records import Record
from analyzers.language_models.data_rows import read_rows
from components.library.schema import VERSION, Flag, Identity, Label, Result
from components.library.storable_reports import MALFORMED, storable_result

if TYPE_CHECKING:
    import pyarrow

_FILE_BYTES = 256_000_000  # Larger files of the library's dataset are ignored.
LIBRARY_FILE_ROWS = 1_000_000  # Rows read from one file of the library's dataset.

Item = TypeVar("Item")
Table = Literal["labels", "flags", "results"]
TABLES: tuple[Table, ...] = ("labels", "flags", "results")


def columns_of(item: type[Record]) -> dict[str, Any]:
    """Return the columns of an item: its fields with the Python types of their values."""

    def kind(annotation: Any) -> Any:
        if get_origin(annotation) is tuple:
            return list
        inner = next(iter(get_args(annotation)), annotation)  # the type inside a literal, or inside a union with None
        return inner if isinstance(inner, type) else type(inner)

    return {name: kind(field.annotation) for name, field in item.model_fields.items()}


LABEL_FIELDS, RESULT_FACTS = columns_of(Label), columns_of(Result)
FIELDS: dict[Table, dict[str, Any]] = {"labels": LABEL_FIELDS, "flags": columns_of(Flag), "results": RESULT_FACTS | {"report": str}}
# Limits of a row group and of an import step, which readers hold in memory.
_GROUP_ROWS = 2_000
_GROUP_BYTES = 32_000_000


class ReadRows(NamedTuple):
    """The items of a part of a file, results with their JSON, and the number of refused rows with the reason of the first."""

    items: list[Any]
    refused: int = 0
    reason: str = ""


def schema_of(fields: dict[str, Any]) -> "pyarrow.Schema":
    """Return the Parquet schema of columns with these Python types."""
    import pyarrow as pa

    kinds = {str: pa.string(), int: pa.int64(), bool: pa.bool_(), float: pa.float64(), list: pa.list_(pa.string())}
    return pa.schema([(name, kinds[kind]) for name, kind in fields.items()])


def to_parquet(table: Table, rows: Sequence[dict[str, Any]]) -> bytes:
    """Write rows of a table as a Parquet file; the same rows give the same bytes with the same version of pyarrow."""
    import pyarrow
    from pyarrow import parquet

    schema = schema_of(FIELDS[table])
    packed = io.BytesIO()
    with parquet.ParquetWriter(packed, schema, compression="zstd") as writer:
        for group in chunks(rows, lambda row: row.get("size", 0), _GROUP_ROWS, _GROUP_BYTES) or [[]]:
            writer.write_table(pyarrow.Table.from_pylist(group, schema))
    return packed.getvalue()


def chunks(items: Iterable[Item], size: Callable[[Item], int], most: int, nbytes: int) -> list[list[Item]]:
    """Divide items into chunks of at most ``most`` items and ``nbytes`` bytes, but of at least one item."""
    groups, total = list[list[Item]](), 0
    for item in items:
        total += size(item)
        if not groups or len(groups[-1]) == most or total > nbytes:
            groups.append([])
            total = size(item)
        groups[-1].append(item)
    return groups


def path_of(table: Table, ids: Sequence[str]) -> str:
    """Return the path in the dataset of a file with these items, derived from their ids: the same file has the same name."""
    digest = hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()
    return f"{table}/{table}-{digest[:32]}.parquet"


def take(table: Table, file: RangeFile) -> Iterator[ReadRows]:
    """Yield the items of a file of the dataset, part by part. Invalid rows are counted; an unreadable remainder counts as one.

    Raises HubError if the file cannot be read.
    """
    part, nbytes = ReadRows([]), 0
    try:
        if file.size > _FILE_BYTES:
            raise LimitExceeded(f"The file has {file.size:,} bytes, more than {_FILE_BYTES:,}.")
        for number, (_, row) in enumerate(read_rows(file, FIELDS[table])):
            if number == LIBRARY_FILE_ROWS:
                raise LimitExceeded(f"The file has more than {number:,} rows.")
            try:
                part.items.append(_item(table, row))
                nbytes += part.items[-1][0].size if table == "results" else 0
            except MALFORMED as error:
                part = ReadRows(part.items, part.refused + 1, part.reason or _short(error))
            if len(part.items) + part.refused >= _GROUP_ROWS or nbytes >= _GROUP_BYTES:
                yield part
                part, nbytes = ReadRows([]), 0
    except HubError:
        raise
    except MantissaError as error:
        part = ReadRows(part.items, part.refused + 1, part.reason or _short(error))
    yield part


def _item(table: Table, row: Any) -> Any:
    """Validate one row and return its item, see `ReadRows`. Facts about a report are recomputed from it."""
    if row.get("version") != VERSION:
        raise InvalidRequest("The row is of another version.")
    if table == "labels":
        # Anybody can claim to belong to an organisation: only a user's own models are marked.
        label = Label.model_validate(row)
        author = Identity(name=label.contributor, provenance=label.provenance).wrote(label.model)
        return label.model_copy(update={"author": author})
    if table == "flags":
        return Flag.model_validate(row)
    text = row["report"]
    if not isinstance(text, str):
        raise InvalidRequest("The row has no report.")
    result = storable_result(text, key=row["key"] or "", created=row["created"], contributor=row["contributor"] or "")
    if result is None or result.id != row["id"] or result.sample:
        raise InvalidRequest("The report is not one of public checkpoints, or not the one that the row names.")
    return result, text


def row_of(item: Any) -> dict[str, Any]:
    """Convert an item, see `ReadRows`, to a row of the dataset."""
    return result_row(*item) if isinstance(item, tuple) else dict(item.model_dump())


def result_row(result: Result, text: str) -> dict[str, Any]:
    """Convert a result to a row of the dataset."""
    return result.model_dump() | {"report": text}


def _short(error: Exception) -> str:
    """Say why a row was refused, without quoting it."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(str(part) for part in first['loc'])[:60]}: {first['type']}"
    return type(error).__name__


def known(paths: Sequence[str]) -> Iterator[tuple[Table, str]]:
    """Yield the files of the dataset that contain items, with their table; other files are ignored."""
    for path in sorted(paths):
        for table in TABLES:
            if path.startswith(f"{table}/") and path.endswith(".parquet"):
                yield table, path
