"""Makes external text safe to display: no invisible or reordering characters, no unbounded length, no HTML."""

import re
from html import escape

from analyzers.terminal import printable

# Longest name in a table row; the downloads have the full name.
LONGEST = 160
LONGEST_SENTENCE = 2_000
_POWER = re.compile(r"(?<![\w.])(2|10)\^(-?\d+)")
_EXPONENT = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)e([+-])0*(\d+)(?!\w)")
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


def powers(text: str) -> str:
    """Normalize the numbers in a trusted sentence: ``2^-18`` becomes 2⁻¹⁸, ``3.727e+05`` 3.727e5, ``fp8_e4m3`` fp8 e4m3."""
    text = _POWER.sub(lambda found: found[1] + found[2].translate(_SUPERSCRIPTS), text)
    text = _EXPONENT.sub(lambda found: f"{found[1]}e{'-' if found[2] == '-' else ''}{found[3]}", text)
    return re.sub(r"\bfp8_(e4m3|e5m2)\b", r"fp8 \1", text)


def prose(text: str) -> str:
    """Render a sentence of an analyzer as HTML: `powers`, then `html` with the length limit of a sentence."""
    return html(powers(text), LONGEST_SENTENCE)
