"""Reports as GitHub Markdown: untrusted text is neither markup nor a link, and notifies nobody."""

import re
from collections.abc import Iterable, Sequence

from analyzers.terminal import printable

# GitHub resolves entities and backslashes before it looks for mentions, issues and addresses: only a character in between stops it.
_GAP = "\u200b"
_MARKUP = re.compile(r"[\\`*_{}\[\]<>|~#$!&]")
_LINKS = re.compile(r"[@#]|://|www(?=\.)|\bGH(?=-\d)", re.IGNORECASE)
_LONGEST = 300


def plain(text: str, longest: int = 0) -> str:
    """``text`` on one line, shown as it is. longest: characters beyond which its middle is left out; 0: none."""
    if longest and len(text) > longest:
        half = (longest - 1) // 2
        text = f"{text[: longest - 1 - half]}…{text[-half:]}"
    escaped = _MARKUP.sub(lambda match: f"\\{match[0]}", printable(text))
    return _LINKS.sub(lambda match: match[0].replace("://", f":{_GAP}//") if "/" in match[0] else f"{match[0]}{_GAP}", escaped)


def table(titles: Sequence[str], rows: Iterable[Sequence[str]], right: frozenset[int] = frozenset()) -> list[str]:
    """The lines of a table of plain text; the columns in ``right`` are right-aligned. Nothing without rows."""
    lines = [f"| {' | '.join(plain(cell, _LONGEST) for cell in row)} |" for row in rows]
    rule = " | ".join("---:" if column in right else "---" for column in range(len(titles)))
    return [f"| {' | '.join(titles)} |", f"| {rule} |", *lines] if lines else []
