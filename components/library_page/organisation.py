"""Renders a page per organisation on the server: its models in the library, their bytes, their lineage, and possible savings."""

from collections.abc import Callable
from typing import Any, NamedTuple

from analyzers.core.formatting import day, size
from components.appearance.navigation import navigation
from components.library import Library, ModelRow
from components.library_page.list_tables import fp16, passed, saved, trained_in
from components.results.self_contained_page import Page
from components.site import addresses, link_previews
from components.text import html, macros, numbers

_PARTS = macros("library_page/templates/organisation.html")


class Column(NamedTuple):
    """A column of the table.

    key: sort key of a row. cell: the HTML of a row; links of an embedded table, for which it is true, open a page of their own.
    descending: whether a first click on the title sorts in descending order.
    """

    title: str
    key: Callable[[ModelRow], Any]
    cell: Callable[[ModelRow, bool], str]
    descending: bool = False


def _name(row: ModelRow, embedded: bool) -> str:
    return _PARTS.link(addresses.labels_of(row.model), row.model.partition("/")[2], embedded)


def _storage(row: ModelRow, embedded: bool) -> str:
    return _PARTS.link(addresses.stored(row.result), row.storage, embedded) if row.result else numbers.NOTHING


def _day(updated: str) -> str:
    return html(day(updated)[: len("2026-11-24")]) if updated else numbers.NOTHING


COLUMNS = {
    "model": Column("Model", lambda row: row.model.lower(), _name),
    "size": Column("Size", lambda row: row.bytes or 0, lambda row, _: numbers.NOTHING if row.bytes is None else size(row.bytes), True),
    "wasted": Column("Could be saved", lambda row: row.wasted or 0, lambda row, _: saved(row.wasted), True),
    "storage": Column("Stored as", lambda row: row.storage, _storage),
    "lineage": Column("Passed through", lambda row: row.passed_through, lambda row, _: html(passed(row))),
    "precision": Column("Trained in", lambda row: row.precision or row.trained_in, lambda row, _: trained_in(row)),
    "fp16": Column("fp16", lambda row: row.fp16_risk, lambda row, _: html(fp16(row))),
    "results": Column("Results", lambda row: row.results, lambda row, _: f"{row.results}", True),
    "updated": Column("Updated", lambda row: row.updated, lambda row, _: _day(row.updated), True),
}
_FIRST = "-wasted"


class Order(NamedTuple):
    """The order of the rows. column: a key of `COLUMNS`."""

    column: str
    descending: bool

    @classmethod
    def of(cls, text: str) -> "Order":
        """Parse the order in an address: ``size``, or ``-size`` if descending. Any other text means the initial order."""
        name = text.removeprefix("-")
        return cls(name, text.startswith("-")) if name in COLUMNS else cls.of(_FIRST)

    def clicked(self, column: str) -> str:
        """Return the order after a click on the title of a column; a second click reverses it."""
        descending = not self.descending if column == self.column else COLUMNS[column].descending
        return f"{'-' if descending else ''}{column}"


def organisation_page(library: Library, name: str, order: str, embedded: bool, origin: str) -> str | None:
    """Render the page; None if the library has no model of this organisation. origin: the address of the app. Raises LibraryUnavailable."""
    rows = list(library.organisation(name))
    if not rows:
        return None
    shown = rows[0].model.partition("/")[0]
    by = Order.of(order)
    rows.sort(key=lambda row: row.model.lower())
    rows.sort(key=COLUMNS[by.column].key, reverse=by.descending)
    said, address = summary(rows), addresses.organisation(shown)
    meta = link_previews.tags(
        link_previews.Preview(f"{shown}: {numbers.plural(len(rows), 'model')}", said, f"card/org/{shown}.png"), origin
    )
    table = _PARTS.table(COLUMNS, by, [[column.cell(row, embedded) for column in COLUMNS.values()] for row in rows], embedded)
    if embedded:
        return Page(shown, "Mantissa", "").served("", meta + _PARTS.style(), _PARTS.embedded(shown, said, table, f"../{address}"))
    body = _PARTS.page(said, table, f"{origin}{address}?embed=1", shown)
    return Page(shown, "Mantissa", "").served(
        "", meta + _PARTS.style(), navigation("../") + Page(f"The models of {shown}", "Mantissa", body).titled()
    )


def card_of(library: Library, name: str) -> tuple[str, str] | None:
    """Return the title and the sentence on the picture of a link preview; None if there is no such page."""
    rows = list(library.organisation(name))
    return (f"The models of {rows[0].model.partition('/')[0]}", summary(rows)) if rows else None


def no_models_page(name: str) -> str:
    """Render the page of an organisation without models in the library."""
    page = Page("No models here", "Mantissa", _PARTS.missing(name))
    return page.served("", _PARTS.not_indexed(), navigation("../") + page.titled())


def summary(rows: list[ModelRow]) -> str:
    """Summarize the totals in a sentence or two."""
    known = [row for row in rows if row.bytes is not None]
    sentence = f"{numbers.plural(len(rows), 'model')} in the library"
    if not known:
        return f"{sentence}; none of them has a passport here yet."
    stored, wasted = sum(row.bytes or 0 for row in known), sum(row.wasted or 0 for row in known)
    of = "" if len(known) == len(rows) else f", of which {len(known):,} have a passport"
    less = f"{size(wasted)} of that could be saved without changing a value" if wasted else "nothing of that is known to be wasted"
    return f"{sentence}{of}. They store {size(stored)}; {less}."
