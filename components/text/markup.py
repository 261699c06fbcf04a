"""Renders HTML fragments shared by the results of all analyzers: headers, tiles, tags, tables, captions, notes. All of them escape."""

from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from components.text.render import macros

_PIECES = macros("text/templates/pieces.html")
_LONGEST_CELL = 1_000
# Share of numeric columns from which a table is one of numbers.
_NUMERIC = 0.3


def head(title: str, facts: str) -> str:
    """Render the header of a card. title: HTML; facts: a line of plain text."""
    return _PIECES.head(title, facts)


def tile(question: str, answer: str, badge: str, body: str) -> str:
    """Render a question with its short answer (plain text), the tag for the kind of evidence, and the sentences below (HTML)."""
    return _PIECES.tile(question, answer, badge, body)


def tag(kind: str, text: str) -> str:
    """Render a tag for the kind of evidence; ``kind`` is its style."""
    return _PIECES.tag(kind, text)


def table(
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    numeric: frozenset[int] = frozenset(),
    caption: str = "",
    marked: frozenset[int] = frozenset(),
    stacked: bool = False,
    dense: bool = False,
) -> str:
    """Render a table of plain text; ``numeric`` columns are right-aligned, ``marked`` rows are highlighted. Names are not truncated.

    On a narrow screen the table scrolls, and its first column stays; a ``stacked`` table of words lists the cells of a row vertically,
    each with its title. A ``dense`` one is set in smaller type.
    """
    stacked = stacked and len(numeric) < _NUMERIC * len(titles)  # numbers are compared down a column
    return _PIECES.table(titles, rows, numeric, caption, marked, stacked, dense)


def cited(text: str, named: str = "Source: ") -> str:
    """Render a source: a link that shows its host if ``text`` is an address, else the text itself. named: the prefix."""
    try:
        host = urlsplit(text).scheme in ("http", "https") and urlsplit(text).hostname
    except ValueError:
        host = None
    return _PIECES.link(text, f"{named}{host}") if host else _PIECES.text(f"{named}{text}", _LONGEST_CELL)


def link(address: str, text: str) -> str:
    """Render a link to a page of another site."""
    return _PIECES.link(address, text)


def caption(text: str) -> str:
    """Render a sentence above a figure."""
    return _PIECES.caption(text)


def notes(said: Iterable[str]) -> str:
    """Render notes without duplicates; empty if there are none."""
    return _PIECES.notes(list(dict.fromkeys(said)))
