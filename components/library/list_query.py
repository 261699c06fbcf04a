"""Builds queries of the lists: search, filters, order, page. Values are passed as parameters; column names come only from this module."""

import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

from pydantic import Field, ValidationError

from analyzers.core.errors import InvalidRequest
from analyzers.core.records import Record
from analyzers.core.request import request_error
from components.library.database import COLLATED

Row = TypeVar("Row")

_TEXT = 200
LAST_PAGE = 10**6


class Query(Record):
    """The search, filters, order and page of a list. A list ignores fields that it does not have.

    text: searched in model, contributor and evidence; every word must occur, case-insensitive. model: exact, case-insensitive. storage,
    passed_through: match any single word. disputed: None for both. current: exclude replaced and hidden labels. sort: "" for the newest
    first. page: from 1.
    """

    text: str = Field(default="", max_length=_TEXT)
    model: str = Field(default="", max_length=_TEXT)
    precision: str = Field(default="", max_length=_TEXT)
    storage: str = Field(default="", max_length=_TEXT)
    passed_through: str = Field(default="", max_length=_TEXT)
    trained_in: str = Field(default="", max_length=_TEXT)
    fp16_risk: str = Field(default="", max_length=_TEXT)
    contributor: str = Field(default="", max_length=_TEXT)
    provenance: str = Field(default="", max_length=_TEXT)
    analyzer: str = Field(default="", max_length=_TEXT)
    disputed: bool | None = None
    current: bool = True
    sort: str = ""
    descending: bool = True
    page: int = Field(default=1, ge=1, le=LAST_PAGE)
    per_page: int = Field(default=50, ge=1, le=500)

    @classmethod
    def of(cls, **fields: Any) -> Self:
        """Validate the fields of a query. Raises InvalidRequest."""
        try:
            return cls(**fields)
        except ValidationError as error:
            raise request_error(error) from None


class Page(Record, Generic[Row]):
    """One page of a list. total: number of rows on all pages."""

    rows: tuple[Row, ...]
    total: int
    page: int
    pages: int


@dataclass(frozen=True)
class List(Generic[Row]):
    """A table as a list.

    columns: those read; row: builds a row from them. search: a lower-case column. same, words: filter (a field of `Query`) -> column that
    must equal the value, or contain it as a word. facets: columns with few values. scope: a condition on every row.
    """

    table: str
    columns: str
    row: Callable[[Any], Row]
    search: str
    same: Mapping[str, str]
    words: Mapping[str, str]
    sorts: Sequence[str]
    newest: str
    facets: Sequence[str]
    scope: str = ""


def page_of(connection: sqlite3.Connection, wanted: List[Row], query: Query) -> Page[Row]:
    """Read a page of a list. Raises InvalidRequest for an unknown order."""
    if query.sort and query.sort not in wanted.sorts:
        raise InvalidRequest(f"The list of {wanted.table} can be sorted by {', '.join(wanted.sorts)}, not by {query.sort[:40]!r}.")
    clauses, values = _filters(wanted, query)
    where = f" WHERE {' AND '.join(clauses)}" if clauses else ""
    way = "DESC" if query.descending or not query.sort else "ASC"
    column = query.sort or wanted.newest
    order = f"ORDER BY {COLLATED.get(column, column)} {way}, number {way}"
    # The inner query reads only indexes; the wide rows are read for one page.
    numbers = f"SELECT number FROM {wanted.table}{where} {order} LIMIT ? OFFSET ?"  # noqa: S608 - our own names
    asked = f"SELECT {wanted.columns} FROM {wanted.table} WHERE number IN ({numbers}) {order}"  # noqa: S608
    rows = tuple(map(wanted.row, connection.execute(asked, [*values, query.per_page, (query.page - 1) * query.per_page])))
    (total,) = connection.execute(f"SELECT COUNT(*) FROM {wanted.table}{where}", values).fetchone()  # noqa: S608
    return Page(rows=rows, total=total, page=query.page, pages=max(1, -(-total // query.per_page)))


def _filters(wanted: List[Any], query: Query) -> tuple[list[str], list[Any]]:
    """Return conditions that use one index each. The plus keeps SQLite from starting with an unselective condition."""
    conditions, values = [], list[Any]()
    for field, column in wanted.same.items():
        if (value := getattr(query, field)) not in ("", None):
            conditions.append(f"{column} = ?")
            values.append(value.lower() if column == "model_key" else value)
    for field, column in wanted.words.items():
        if value := getattr(query, field):
            conditions.append(f"instr(' ' || {column} || ' ', ?)")
            values.append(f" {value} ")
    if sought := query.text.lower().split()[:10]:  # one condition for all words, since each condition is a pass over all rows
        conditions.append(" AND ".join(f"instr({wanted.search}, ?)" for _ in sought))
        values.extend(sought)
    clauses = [f"+number IN (SELECT number FROM {wanted.table} WHERE {condition})" for condition in conditions]  # noqa: S608
    if query.disputed is not None and wanted.table != "results":
        among = "IN" if query.disputed else "NOT IN"
        clauses.append(f"+number {among} (SELECT number FROM {wanted.table} WHERE disputed)")  # noqa: S608
    if wanted.table == "labels" and query.current:
        clauses.append("current")
    return [*clauses, *([wanted.scope] if wanted.scope else [])], values


def facets(connection: sqlite3.Connection, wanted: List[Any]) -> dict[str, dict[str, int]]:
    """Return the values that occur in each column with few values, with their numbers of rows."""
    scope = "current" if wanted.table == "labels" else wanted.scope or "TRUE"
    columns = {}
    for column in wanted.facets:
        counts = Counter[str]()
        asked = f"SELECT {column}, COUNT(*) FROM {wanted.table} WHERE {scope} GROUP BY {column}"  # noqa: S608 - our own names
        for value, rows in connection.execute(asked):
            counts.update(dict.fromkeys(value.split(), rows))  # a filter matches any single word
        columns[column] = dict(sorted(counts.items()))
    return columns
