"""Pieces of HTML that the results of every analyzer are made of: heads, tiles, tags, tables, captions, notes. All of it escapes."""

from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from components.text.plain_text import html, prose

_LONGEST_CELL = 1_000


def head(title: str, facts: str) -> str:
    """The head of a card. title: HTML; facts: a line of plain text beside it."""
    return f'<div class="m-head"><h2>{title}</h2><small>{html(facts, 500)}</small></div>'


def tile(question: str, answer: str, badge: str, body: str) -> str:
    """One question with its short answer (plain text), the tag for how we know, and the sentences below (HTML)."""
    return f'<div class="m-tile"><h3>{html(question)}</h3><p class="m-value">{html(answer)}</p>{badge}{body}</div>'


def tag(kind: str, text: str) -> str:
    """A tag that says how we know; ``kind`` is its style."""
    return f'<span class="m-tag m-{kind}">{html(text)}</span>'


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
    top = "".join(f'<th scope="col"{_class(i in numeric)}>{html(text, _LONGEST_CELL)}</th>' for i, text in enumerate(titles))
    named = [f' data-title="{html(text)}"' if stacked else "" for text in titles]
    cells = ("".join(f"<td{_class(i in numeric)}{named[i]}>{html(text, _LONGEST_CELL)}</td>" for i, text in enumerate(row)) for row in rows)
    body = "".join(f"<tr{_marked(i in marked)}>{row}</tr>" for i, row in enumerate(cells))
    name = f"<caption>{html(caption)}</caption>" if caption else ""
    kind = "m-table m-stacked" if stacked else "m-table"
    scroll = f'<div class="m-scroll" tabindex="0" role="group" aria-label="{html(caption or titles[0])}">'
    return f'{scroll}<table class="{kind}">{name}<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def cited(text: str, named: str = "Source: ") -> str:
    """Where something is said: a link where ``text`` is an address, which shows its host; else the text itself. named: begins it."""
    try:
        host = urlsplit(text).scheme in ("http", "https") and urlsplit(text).hostname
    except ValueError:
        host = None
    if not host:
        return f"{named}{html(text, _LONGEST_CELL)}"
    return f'<a href="{html(text, len(text))}" rel="noopener noreferrer nofollow" target="_blank">{named}{html(host)}</a>'


def caption(text: str) -> str:
    """A sentence above a figure."""
    return f'<p class="m-caption">{prose(text)}</p>'


def notes(said: Iterable[str]) -> str:
    """What else there is to say, each note once; nothing where there are none."""
    unique = dict.fromkeys(said)
    return f'<ul class="m-notes">{"".join(f"<li>{prose(note)}</li>" for note in unique)}</ul>' if unique else ""


def _class(numeric: bool) -> str:
    return ' class="m-n"' if numeric else ""


def _marked(marked: bool) -> str:
    return ' class="m-marked"' if marked else ""
