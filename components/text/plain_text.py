"""Makes external text safe to display: no invisible or reordering characters, no unbounded length, no HTML."""

import re
from html import escape

from analyzers.formatting import powers
from analyzers.terminal import printable

# Longest name in a table row; the downloads have the full name.
LONGEST = 160
LONGEST_SENTENCE = 2_000
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_NORMAL = {superscript: plain for plain, superscript in _SUPERSCRIPTS.items()}


def shown(text: str, longest: int = LONGEST) -> str:
    """Return ``text`` as one line of plain text.

    Invisible characters are replaced by their code (``<U+202E>``), any whitespace by one space; long texts are truncated in the middle.
    ``longest`` counts characters of ``text`` and is at least 3.
    """
    if len(text) > longest:
        half = (longest - 1) // 2
        text = f"{text[: longest - 1 - half]}…{text[-half:]}"
    return printable("".join(" " if c.isspace() else c for c in text))


def ascii_only(text: str) -> str:
    """Convert ``text`` for a font with ASCII characters only: ``->`` for an arrow, ``2^-8`` for a power, ``?`` for the rest."""
    text = re.sub(
        r"[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+", lambda found: f"^{found[0].translate(_NORMAL)}", text.replace("→", "->").replace("–", "-").replace("±", "+/-")
    )
    return text.replace("\u00a0", " ").encode("ascii", "replace").decode()


def html(text: str, longest: int = LONGEST) -> str:
    """Escape `shown` text: for HTML, inside elements and quoted attributes, and for Plotly."""
    return escape(shown(text, longest))


def prose(text: str) -> str:
    """Render a sentence of an analyzer as HTML: `powers`, then `html` with the length limit of a sentence."""
    return html(powers(text), LONGEST_SENTENCE)
