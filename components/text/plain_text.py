"""Text from outside, made fit to be seen: nothing invisible, nothing that reorders a line, nothing endless, nothing that is HTML."""

import re
from html import escape

from analyzers.terminal import printable

# What a line of a table can bear; the whole name is in the downloads.
LONGEST = 160
LONGEST_SENTENCE = 2_000
_POWER = re.compile(r"(?<![\w.])(2|10)\^(-?\d+)")
_EXPONENT = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)e([+-])0*(\d+)(?!\w)")
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def shown(text: str, longest: int = LONGEST) -> str:
    """``text`` as plain text of one line: what cannot be seen is written as its code (``<U+202E>``), the middle of a long text left out.

    White space of any kind becomes one space. ``longest`` counts characters of ``text`` and is at least 3.
    """
    if len(text) > longest:
        half = (longest - 1) // 2
        text = f"{text[: longest - 1 - half]}…{text[-half:]}"
    return printable("".join(" " if c.isspace() else c for c in text))


def html(text: str, longest: int = LONGEST) -> str:
    """`shown`, escaped: for HTML, inside elements and quoted attributes, and for Plotly."""
    return escape(shown(text, longest))


def powers(text: str) -> str:
    """A sentence of ours with its numbers in one notation: ``2^-18`` becomes 2⁻¹⁸, ``3.727e+05`` 3.727e5, ``fp8_e4m3`` fp8 e4m3."""
    text = _POWER.sub(lambda found: found[1] + found[2].translate(_SUPERSCRIPTS), text)
    text = _EXPONENT.sub(lambda found: f"{found[1]}e{'-' if found[2] == '-' else ''}{found[3]}", text)
    return re.sub(r"\bfp8_(e4m3|e5m2)\b", r"fp8 \1", text)


def prose(text: str) -> str:
    """A sentence of an analyzer as HTML: `powers`, then `html`, at any length a sentence may have."""
    return html(powers(text), LONGEST_SENTENCE)
