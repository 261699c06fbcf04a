"""Text for a terminal: aligned columns, wrapping, and untrusted text made harmless."""

import math
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from analyzers.formatting import listed, plural, size
from analyzers.formatting import magnitude as number
from analyzers.formatting import share as percent

__all__ = ["bar", "clean", "columns", "fitted", "not_read", "number", "percent", "plural", "printable", "size", "some_files"]

# A last cell of a row that is shorter is not wrapped, and in less space lines are indented by only so much.
_SENTENCE, _INDENT = 30, 4
# Reasons that are given one by one, files that a sentence names, and characters of a path in it.
_REASONS, _NAMED, _PATH = 8, 5, 200
# Characters of the longest bar of a histogram: short enough for a terminal of 60 columns.
_BAR = 24


def columns(rows: Sequence[tuple[str, ...]], right: tuple[int, ...] = ()) -> list[str]:
    """Lines of ``rows`` with aligned columns; those numbered in ``right`` are right-aligned.

    On a terminal that is too narrow, the columns that do not fit follow below, next to the first column again; where that leaves no room
    for one of them, each first cell has a line of its own, above the rest of its row.
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]

    def line(row: tuple[str, ...], block: Sequence[int]) -> str:
        return "  ".join(row[i].rjust(widths[i]) if i in right else row[i].ljust(widths[i]) for i in block).rstrip()

    available = terminal_width()
    needed = [*widths[:-1], min(widths[-1], _SENTENCE)]  # a wide last column is a sentence, which `fitted` wraps
    if len(widths) > 2 and widths[0] + 2 + max(needed[1:]) > available:
        widths[0] = needed[0] = 0
        below = list(_blocks(needed, available))
        return [text for row in rows for text in (row[0], *(line(("", *row[1:]), block) for block in below))]
    return [line(row, block) for block in _blocks(needed, available) for row in rows]


def _blocks(needed: Sequence[int], available: float) -> Iterator[list[int]]:
    """The columns that fit next to each other, the first one in each block."""
    block = [0]
    for i in range(1, len(needed)):
        if len(block) > 1 and sum(needed[j] + 2 for j in block) + needed[i] > available:
            yield block
            block = [0]
        block.append(i)
    yield block


def terminal_width() -> float:
    """Columns of the terminal that standard output is; infinite where it is none."""
    return shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else math.inf


def bar(share: float) -> str:
    """A bar of a histogram for ``share`` of the largest count, in [0, 1]; never empty, unless it is of nothing."""
    return "#" * max(round(_BAR * share), share > 0)


def fitted(text: str, width: int) -> str:
    """Wrap the lines of ``text`` that are longer than ``width``: sentences, and the last column of a row where it holds one."""
    return "\n".join(_fitted(line, width) for line in text.split("\n"))


def _fitted(line: str, width: int) -> str:
    start = max((gap.end() for gap in re.finditer(r"  +", line)), default=0)
    if len(line) <= width or len(line) - start < _SENTENCE:
        return line
    indent = " " * (start if width - start >= _SENTENCE else _INDENT)
    wrapper = textwrap.TextWrapper(width, line[:start], indent, break_long_words=False, break_on_hyphens=False)
    return wrapper.fill(line[start:])


def printable(text: str) -> str:
    """``text`` on one line, with characters that are invisible, control a terminal or reorder a line as their code, ``<U+202E>``."""
    return text if text.isprintable() else "".join(c if c.isprintable() else f"<U+{ord(c):04X}>" for c in text)


def clean(text: str) -> str:
    """Make each line of ``text`` `printable`: names of tensors are untrusted."""
    return "\n".join(map(printable, text.split("\n")))


def some_files(paths: Sequence[str]) -> str:
    """The first few of ``paths``, and how many more there are."""
    names = [f'"{printable(path[:_PATH])}"' + ("..." if len(path) > _PATH else "") for path in paths[:_NAMED]]
    more = len(paths) - _NAMED
    return ", ".join(names) + f" and {plural(more, 'more file')}" if more > 0 else listed(names)


def not_read(files: Iterable[tuple[str, str]]) -> list[str]:
    """Sentences on ``files``, each a path and the reason why it was not read: one for each reason, and one for what exceeds a few."""
    reasons: dict[str, list[str]] = {}
    for path, why in files:
        reasons.setdefault(why, []).append(path)
    sentences = [f"Not read: {some_files(paths)}, {why}." for why, paths in list(reasons.items())[:_REASONS]]
    others = [path for paths in list(reasons.values())[_REASONS:] for path in paths]
    return [*sentences, f"Not read for other reasons: {some_files(others)}."] if others else sentences
