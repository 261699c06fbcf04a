"""Makes external text safe to display: no invisible or reordering characters, no unbounded length, no HTML."""

from html import escape

from analyzers.core.formatting import powers
from analyzers.core.terminal import printable

# Longest name in a table row; the downloads have the full name.
LONGEST = 160
LONGEST_SENTENCE = 2_000


def shown(text: str, longest: int = LONGEST) -> str:
    """Return ``text`` as one line of plain text.

    Invisible characters are replaced by their code (``<U+202E>``), any whitespace by one space; long texts are truncated in the middle.
    ``longest`` counts characters of ``text`` and is at least 3.
    """
    if len(text) > longest:
        half = (longest - 1) // 2
        text = f"{text[: longest - 1 - half]}…{text[-half:]}"
    return printable("".join(" " if c.isspace() else c for c in text))


def html(text: str, longest: int = LONGEST) -> str:
    """Escape `shown` text: for HTML, inside elements and quoted attributes, and for Plotly."""
    return escape(shown(text, longest))


def prose(text: str) -> str:
    """Render a sentence of an analyzer as HTML: `powers`, then `html` with the length limit of a sentence."""
    return html(powers(text), LONGEST_SENTENCE)
