"""Reports as text for a terminal: what every analyzer's text has in common."""

from collections.abc import Sequence


def columns(rows: Sequence[tuple[str, ...]], right: tuple[int, ...] = ()) -> list[str]:
    """Aligned lines of ``rows``; columns numbered in ``right`` are flush right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    cells = (
        [cell.rjust(width) if i in right else cell.ljust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True))]
        for row in rows
    )
    return ["  ".join(line).rstrip() for line in cells]


def number(x: float | None) -> str:
    """Four digits, or a dash."""
    return "-" if x is None else f"{x:.4g}"


def percent(share: float | None) -> str:
    """A share in per cent."""
    return "-" if share is None else f"{100 * share:.4g} %"


def size(size: int) -> str:
    """Bytes in the largest unit that fits."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size} B"


def plural(count: int, one: str, many: str = "") -> str:
    """A count with what is counted: ``1 tensor``, ``2,000 tensors``; many: where an s does not make it."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def printable(text: str) -> str:
    """``text`` on one line: what cannot be seen, or could rewrite a terminal or reorder a line, is written as its code, ``<U+202E>``."""
    return text if text.isprintable() else "".join(c if c.isprintable() else f"<U+{ord(c):04X}>" for c in text)


def clean(text: str) -> str:
    """Each line of ``text`` `printable`: names of tensors are somebody else's text."""
    return "\n".join(map(printable, text.split("\n")))
