"""Writes text for a terminal: aligned columns, wrapping, and untrusted text made harmless.

A report becomes a list of lines, and each line is made `printable` when it is printed or joined (`joined`): a name that contains a line
break cannot begin a line.
"""

import math
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

from analyzers.core.formatting import listed, plural
from analyzers.core.formatting import share as percent

__all__ = [
    "bar", "columns", "fitted", "joined", "percent", "plural", "print_line", "printable", "printable_json", "quoted",
    "quoted_names", "some_files",
]  # fmt: skip

# A last cell shorter than _SENTENCE is not wrapped; in less space than that, lines are indented by _INDENT only.
_SENTENCE, _INDENT = 30, 4
# Most files that a sentence names, and characters of a path in it.
_NAMED, _PATH = 5, 200
# Characters of the longest bar of a histogram, which fits a terminal of 60 columns.
_BAR = 24
# Letters, marks and symbols that are invisible: Unicode's default ignorable characters that Python counts as printable, and blanks.
_BLANK = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\ufffc\U0001d159\U000e0100-\U000e01ef]")
# What a runner of GitHub or Azure takes for a command: "::" at the beginning of a line, also after spaces, and "##[" or "##vso[" anywhere.
_COMMAND = r"#(?=#\w*\[)"
_ODD = re.compile(rf"[^ -~]|{_COMMAND}|\A *:(?=:)")
_ODD_IN_JSON = re.compile(rf"[^ -~\n]|{_COMMAND}")


def columns(rows: Sequence[tuple[str, ...]], right: tuple[int, ...] = ()) -> list[str]:
    """Return lines of ``rows`` with aligned columns; those numbered in ``right`` are right-aligned.

    On a terminal that is too narrow, the columns that do not fit follow below, with the first column repeated; if a column still does not
    fit, each first cell gets its own line, above the rest of its row.
    """
    rows = [tuple(map(printable, row)) for row in rows]
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
    """Yield blocks of columns that fit next to each other; each contains the first column."""
    block = [0]
    for i in range(1, len(needed)):
        if len(block) > 1 and sum(needed[j] + 2 for j in block) + needed[i] > available:
            yield block
            block = [0]
        block.append(i)
    yield block


def terminal_width() -> float:
    """Return the width of the terminal on standard output, in columns; infinite if it is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else math.inf


def bar(share: float) -> str:
    """Draw a bar of a histogram for ``share`` of the largest count, in [0, 1]; empty for 0 only."""
    return "#" * max(round(_BAR * share), share > 0)


def fitted(line: str, width: int) -> list[str]:
    """Wrap ``line`` if it is longer than ``width``: a sentence, or the last column of a row that contains one."""
    start = max((gap.end() for gap in re.finditer(r"  +", line)), default=0)
    if len(line) <= width or len(line) - start < _SENTENCE:
        return [line]
    indent = " " * (start if width - start >= _SENTENCE else _INDENT)
    wrapper = textwrap.TextWrapper(width, line[:start], indent, break_long_words=False, break_on_hyphens=False)
    return wrapper.wrap(line[start:])


def printable(text: str) -> str:
    """Return ``text`` on one line; characters that are invisible, control a terminal or reorder a line become their code, ``<U+202E>``.

    The first character of what would be a command to a runner of GitHub Actions or Azure Pipelines becomes its code, too.
    """
    return _ODD.sub(lambda match: match[0] if _shows(match[0]) else f"{match[0][:-1]}<U+{ord(match[0][-1]):04X}>", text)


def quoted(text: str, length: int = 60) -> str:
    """Quote ``text`` for a message: in double quotes, `printable`, truncated to ``length`` characters."""
    return f'"{printable(text[:length])}"' + ("..." if len(text) > length else "")


def quoted_names(names: Sequence[str], most: int = 3) -> str:
    """Quote and list names of tensors, modules or files, the first ``most`` of them."""
    more = [f"{len(names) - most:,} more"] if len(names) > most else []
    return listed([*(quoted(name, 200) for name in names[:most]), *more])


def printable_json(text: str) -> str:
    """Escape these characters in JSON, without changing its meaning: displayed, it can neither hide nor forge anything."""
    return _ODD_IN_JSON.sub(lambda match: match[0] if _shows(match[0]) else _escaped(match[0]), text)


def _shows(found: str) -> bool:
    """Return whether a character outside ASCII is visible."""
    return found > "~" and found.isprintable() and not _BLANK.match(found)


def _escaped(character: str) -> str:
    """Return the code units of a character as JSON escapes."""
    return re.sub("(....)", r"\\u\1", character.encode("utf-16-be", "surrogatepass").hex())


def joined(lines: Iterable[str]) -> str:
    """Join ``lines``, each made `printable`, into a text."""
    return "\n".join(map(printable, lines))


def print_line(sentence: str, file: TextIO | None = None) -> None:
    """Print one line, by default on standard error."""
    print(printable(sentence), file=file or sys.stderr, flush=True)


def some_files(paths: Sequence[str]) -> str:
    """List the first few of ``paths`` and the number of the others."""
    names = [f'"{printable(path[:_PATH])}"' + ("..." if len(path) > _PATH else "") for path in paths[:_NAMED]]
    more = len(paths) - _NAMED
    return ", ".join(names) + f" and {plural(more, 'more file')}" if more > 0 else listed(names)
