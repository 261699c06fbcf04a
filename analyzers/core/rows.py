"""Declares tables where their rows are declared: a field says how people read it, and page, terminal, Markdown, CSV and Parquet follow."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic.fields import FieldInfo

from analyzers.core.columns import Column, Table
from analyzers.core.records import Record
from analyzers.core.words import NUMBERS, write

_PLAIN = (bool, int, float, str)
# Fields that are sorted and aligned as numbers, however they are written.
_NUMBERS = (int, float, int | None, float | None)


@dataclass(frozen=True)
class Shown:
    """How people read a field of a row, in its ``Annotated``; a field without one is only in files.

    title: heading; form: a name in `words.FORMATS` or ``#noun``, or a function that writes the value; help: what the title means, in a
    sentence.
    """

    title: str
    form: str | Callable[[Any], str] = "text"
    help: str = ""


@dataclass(frozen=True)
class Rows:
    """Makes a table of a report's field, in its ``Annotated``. title: the table's; empty: it is only in files. key: default the field's."""

    title: str = ""
    key: str = ""


def metadata(field: Any, kind: type) -> Any:
    """Return the entry of a class in a field's ``Annotated``, or None."""
    return next((item for item in field.metadata if isinstance(item, kind)), None)


@cache
def columns(row: type[Any]) -> tuple[Column, ...]:
    """Return the columns of a class of rows: its plain fields, and those of records in it (``bounds.low`` as bounds_low).

    row: a class of records, or a dataclass, which takes a tenth of the memory.
    """
    return tuple(_columns(row, ""))


def _fields(row: type[Any]) -> dict[str, Any]:
    if issubclass(row, Record):
        return row.model_fields
    return {name: FieldInfo.from_annotation(kind) for name, kind in get_type_hints(row, include_extras=True).items() if name[0] != "_"}


def _columns(row: type[Any], path: str) -> Iterator[Column]:
    for name, field in _fields(row).items():
        inner, shown, value = _record_in(field.annotation), metadata(field, Shown), path + name
        if inner is not None:
            if shown is not None:  # people see it in one cell, files have its fields
                yield Column(value.replace(".", "_"), shown.title, cell=_cell(value, shown.form), only="people", help=shown.help)
            each = _columns(inner, f"{value}.")
            yield from each if shown is None else (replace(column, title="", help="") for column in each)
            continue
        key = value.replace(".", "_")
        if shown is None:
            if _is_plain(field.annotation):
                yield Column(key, value=_read(value))
            continue
        number = shown.form in NUMBERS or field.annotation in _NUMBERS
        yield Column(
            key,
            shown.title,
            _written(shown.form) if number else None,
            value=_read(value),
            cell=None if shown.form in NUMBERS else _cell(value, shown.form),
            help=shown.help,
        )


def _written(form: Any) -> Callable[[Any], str]:
    return lambda value: write(value, form)


def _cell(path: str, form: str | Callable[[Any], str]) -> Callable[[Any], str]:
    """Return the function that writes a field of a row that is no number."""
    read = Column("", value=path)
    if callable(form):
        return lambda row: form(read.value_of(row))
    return lambda row: write(read.value_of(row), form)


def _read(path: str) -> Callable[[Any], Any]:
    """Return the function that reads a field of a row for files: several words in one cell, a shape as ``2x3``."""
    read = Column("", value=path)

    def value(row: Any) -> Any:
        found = read.value_of(row)
        if isinstance(found, tuple):
            return ("x" if all(isinstance(each, int) for each in found) else ", ").join(map(str, found))
        return found

    return value


def _record_in(annotation: Any) -> type[Record] | None:
    """Return the record that a field holds, or None: of ``Record`` and ``Record | None``."""
    return (
        next((kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type) and issubclass(kind, Record)), None)
        if (get_origin(annotation) is not tuple and get_origin(annotation) is not dict)
        else None
    )


def _is_plain(annotation: Any) -> bool:
    """Return whether a field holds a number, a text, or a tuple of these, but no matrix."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) is dict:
        return False
    if get_origin(annotation) is tuple and any(get_origin(kind) is tuple for kind in get_args(annotation)):
        return False
    kinds = [kind for kind in get_args(annotation) if kind not in (type(None), Ellipsis)] or [annotation]
    return all(_is_plain(kind) if get_args(kind) else kind in _PLAIN or isinstance(kind, str | int) for kind in kinds)


@cache
def tables(report: type[Record]) -> tuple[Table, ...]:
    """Return the tables that a class of reports declares by `Rows`, in its own fields and in those of records in it."""
    return tuple(_tables(report, ""))


def _tables(record: type[Record], path: str) -> Iterator[Table]:
    for name, field in record.model_fields.items():
        declared, value = metadata(field, Rows), path + name
        if declared is not None:
            yield Table(declared.key or name, _rows_at(value), columns(get_args(field.annotation)[0]), title=declared.title)
        elif (inner := _record_in(field.annotation)) is not None:
            yield from _tables(inner, f"{value}.")


def _rows_at(path: str) -> Callable[[Any], Sequence[Any]]:
    read = Column("", value=path)
    return lambda report: read.value_of(report) or ()
