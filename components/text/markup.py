"""Pieces of HTML that the results of every analyzer are made of: heads, tiles, tags, tables, captions, notes. All of it escapes."""

from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from components.text.render import macros

_PIECES = macros("text/templates/pieces.html")
_LONGEST_CELL = 1_000


def head(title: str, facts: str) -> str:
    """The head of a card. title: HTML; facts: a line of plain text beside it."""
    return str(_PIECES.head(title, facts))


def tile(question: str, answer: str, badge: str, body: str) -> str:
    """One question with its short answer (plain text), the tag for how we know, and the sentences below (HTML)."""
    return str(_PIECES.tile(question, answer, badge, body))


def tag(kind: str, text: str) -> str:
    """A tag that says how we know; ``kind`` is its style."""
    return str(_PIECES.tag(kind, text))


def table(
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    numeric: frozenset[int] = frozenset(),
    caption: str = "",
    marked: frozenset[int] = frozenset(),
    stacked: bool = False,
) -> str:
    """A table of plain text; the columns in ``numeric`` are right-aligned, the rows in ``marked`` stand out. Names are not shortened.

    On a narrow screen it scrolls inside itself; a ``stacked`` one writes the cells of a row below each other, each with its title.
    """
    return str(_PIECES.table(titles, rows, numeric, caption, marked, stacked))


def cited(text: str, named: str = "Source: ") -> str:
    """Where something is said: a link where ``text`` is an address, which shows its host; else the text itself. named: begins it."""
    try:
        host = urlsplit(text).scheme in ("http", "https") and urlsplit(text).hostname
    except ValueError:
        host = None
    return str(_PIECES.link(text, f"{named}{host}") if host else _PIECES.text(f"{named}{text}", _LONGEST_CELL))


def caption(text: str) -> str:
    """A sentence above a figure."""
    return str(_PIECES.caption(text))


def notes(said: Iterable[str]) -> str:
    """What else there is to say, each note once; nothing where there are none."""
    return str(_PIECES.notes(list(dict.fromkeys(said))))
