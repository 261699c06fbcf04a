"""Reports as text for a terminal: what every analyzer's text has in common."""

from collections.abc import Sequence

from analyzers.formatting import magnitude as number
from analyzers.formatting import plural, size
from analyzers.formatting import share as percent

__all__ = ["clean", "columns", "number", "percent", "plural", "printable", "size"]


def columns(rows: Sequence[tuple[str, ...]], right: tuple[int, ...] = ()) -> list[str]:
    """Aligned lines of ``rows``; columns numbered in ``right`` are flush right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    cells = (
        [cell.rjust(width) if i in right else cell.ljust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True))]
        for row in rows
    )
    return ["  ".join(line).rstrip() for line in cells]


def printable(text: str) -> str:
    """``text`` on one line: what cannot be seen, or could rewrite a terminal or reorder a line, is written as its code, ``<U+202E>``."""
    return text if text.isprintable() else "".join(c if c.isprintable() else f"<U+{ord(c):04X}>" for c in text)


def clean(text: str) -> str:
    """Each line of ``text`` `printable`: names of tensors are somebody else's text."""
    return "\n".join(map(printable, text.split("\n")))
