"""Writes reports as GitHub Markdown, in which untrusted text is neither markup nor a link, and notifies nobody."""

import re
from collections.abc import Iterable, Sequence

from analyzers.core.terminal import printable

# GitHub resolves entities and backslashes before it looks for mentions, issues, commits and addresses: only a character in between stops
# it. It has no width, and is written as an entity because the Markdown is also displayed as source.
_GAP = "&#8203;"
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_MARKUP = re.compile(r"[\\`*_{}\[\]<>|~#!&]|\A[-+=]")
_LINKS = re.compile(r"[@#]|:(?=//|[\w+-]+:)|www(?=\.)|\bGH(?=-\d)|[0-9a-f]{6}(?=[0-9a-f])|\A\d+(?=[.)](?:\s|\Z))", re.IGNORECASE)
_LONGEST = 300


def plain(text: str, longest: int = 0) -> str:
    """Escape ``text`` so that it is shown verbatim on one line. longest: its middle is omitted beyond this many characters; 0: no limit."""
    if _COMMIT.fullmatch(text):
        return f"`{text}`"
    if longest and len(text) > longest:
        half = (longest - 1) // 2
        text = f"{text[: longest - 1 - half]}…{text[-half:]}"
    escaped = _LINKS.sub(rf"\g<0>{_GAP}", _MARKUP.sub(r"\\\g<0>", printable(text)))
    return escaped.replace("$", "<span>$</span>")  # a backslash does not stop mathematics


def table(titles: Sequence[str], rows: Iterable[Sequence[str]], right: frozenset[int] = frozenset()) -> list[str]:
    """Return the lines of a table of plain text; the columns in ``right`` are right-aligned. Empty without rows."""
    lines = [f"| {' | '.join(plain(cell, _LONGEST) for cell in row)} |" for row in rows]
    rule = " | ".join("---:" if column in right else "---" for column in range(len(titles)))
    return [f"| {' | '.join(titles)} |", f"| {rule} |", *lines] if lines else []
