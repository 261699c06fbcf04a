"""Draws the cards of results and pages, PNG, without a browser: the answer with its verdicts or its first figure, a page's question."""

import io
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import gradio

from analyzers.core.report import Report
from components.appearance.theme import LIGHT
from components.plots.raster import Box, draw
from components.site import addresses
from components.text import commit, shown

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw
    from plotly.graph_objects import Figure

    from components.results.layout import Verdict

# Size that sites with link previews expect.
SIZE = (1200, 630)
_MARGIN = 56
_NAME, _SAID, _SMALL = 30, 42, 22
_SAID_LINES, _REACH_LINES, _SUBJECT_LINES = 3, 2, 4
_GAP, _PADDING, _TALLEST = 14, 16, 128
# Gradio's own font, since Pillow's has neither superscripts nor arrows. Of its other weights, the package contains no glyphs.
_FONTS = Path(gradio.__file__).parent / "templates/frontend/static/fonts/SourceSansPro"
# Colours of the tags, by the kind of evidence; any other is grey, with an outline.
_TAGS = {"proof": "proof", "inference": "infer", "label": "label", "warning": "bad"}
# One picture is drawn at a time, in about 0.1 s: previews must not take the cores from analyses.
_drawing = Lock()


def of_report(report: Report) -> bytes:
    """Draw the card of a result: its subject, its headline, and its verdicts, or else its first figure with data."""
    layout = addresses.layout(report.analyzer)
    verdicts = layout.verdicts(report)
    plots = [] if verdicts else layout.plots(report)
    checkpoint = getattr(report, "checkpoint", None)
    version = commit(checkpoint) if checkpoint is not None else ""
    subject = " → ".join(report.subject().values()) + (f" @ {version}" if version else "")
    return _card(layout.title, subject, report.answer.text, plots[0].draw(report) if plots else None, verdicts, report.suffix())


@lru_cache(32)
def of_page(question: str, about: str) -> bytes:
    """Draw the card of a page."""
    return _card("", about, question)


@lru_cache(32)
def _font(size: int, weight: str = "Regular") -> Any:
    from PIL import ImageFont

    return ImageFont.truetype(_FONTS / f"SourceSansPro-{weight}.woff2", size)


def _card(
    title: str, subject: str, said: str, figure: "Figure | None" = None, verdicts: "Sequence[Verdict]" = (), reach: str = ""
) -> bytes:
    """Draw a card.

    reach: how far ``said`` reaches, on separate lines, since a long answer is cut.
    """
    from PIL import Image, ImageDraw

    result = figure is not None or bool(verdicts)
    with _drawing:
        image = Image.new("RGB", SIZE, LIGHT["card"])
        canvas = ImageDraw.Draw(image, "RGBA")
        canvas.rectangle((0, 0, SIZE[0], 10), LIGHT["accent"])
        top = 36.0
        canvas.text((_MARGIN, top), "Mantissa", LIGHT["ink"], _font(_NAME, "Bold"))
        canvas.text((SIZE[0] - _MARGIN, top + 8), title, LIGHT["dim"], _font(_SMALL), anchor="ra")
        top += 52 if result else 142
        if result:
            top = _write(canvas, top, shown(subject, 90), LIGHT["dim"], _font(_SMALL + 4), 1)
        size = _SAID if result else _SAID + 22
        said = shown(said, 1_000)
        if len(list(_wrapped(said, _font(size, "Bold")))) > _SAID_LINES:
            size = int(size * 0.72)
        top = _write(canvas, top, said, LIGHT["ink"], _font(size, "Bold"), _SAID_LINES + 1)
        top = _write(canvas, top, shown(reach, 500), LIGHT["infer"], _font(_SMALL), _REACH_LINES)
        if figure is not None:
            draw(canvas, figure, Box(_MARGIN, top + 16, SIZE[0] - _MARGIN, SIZE[1] - 20), _font(_SMALL))
        elif verdicts:
            _tiles(canvas, verdicts, top + 20)
        else:
            _write(canvas, top + 24, shown(subject, 500), LIGHT["dim"], _font(_SMALL + 6), _SUBJECT_LINES)
        written = io.BytesIO()
        image.save(written, "PNG", optimize=True)
    return written.getvalue()


def _tiles(canvas: "ImageDraw", verdicts: "Sequence[Verdict]", top: float) -> None:
    """Draw verdicts in two columns, from ``top`` down to the margin."""
    wide, rows = (SIZE[0] - 2 * _MARGIN - _GAP) / 2, -(-len(verdicts) // 2)
    high = min(_TALLEST, (SIZE[1] - 28 - top - _GAP * (rows - 1)) / rows)
    for number, verdict in enumerate(verdicts):
        left, upper = _MARGIN + number % 2 * (wide + _GAP), top + number // 2 * (high + _GAP)
        canvas.rounded_rectangle((left, upper, left + wide, upper + high), 12, outline=LIGHT["line"], width=2)
        canvas.text((left + _PADDING, upper + _PADDING), verdict.question, LIGHT["dim"], _font(_SMALL))
        name = _TAGS.get(verdict.kind)
        right, length = left + wide - _PADDING, _font(_SMALL - 3).getlength(verdict.how)
        pill = (right - length - 24, upper + _PADDING - 2, right, upper + _PADDING + 28)
        canvas.rounded_rectangle(pill, 15, LIGHT[f"{name}-bg"] if name else None, None if name else LIGHT["line"], 2)
        canvas.text(((pill[0] + right) / 2, (pill[1] + pill[3]) / 2), verdict.how, LIGHT[name or "dim"], _font(_SMALL - 3), anchor="mm")
        answer = shown(verdict.answer, 60)
        size = next((size for size in range(38, 18, -2) if _font(size, "Bold").getlength(answer) < wide - 2 * _PADDING), 18)
        canvas.text((left + _PADDING, upper + high - _PADDING), answer, LIGHT["ink"], _font(size, "Bold"), anchor="ls")


def _write(canvas: "ImageDraw", top: float, text: str, colour: str, font: Any, most: int) -> float:
    """Write at most this many lines, the last with an ellipsis if there are more; return where the next may begin."""
    lines = list(_wrapped(text, font))
    if len(lines) > most:
        lines = [*lines[: most - 1], f"{lines[most - 1]} …"]
    for line in lines:
        canvas.text((_MARGIN, top), line, colour, font)
        top += 1.28 * font.size
    return top + (8 if lines else 0)


def _wrapped(text: str, font: Any) -> Iterator[str]:
    """Break a text into lines as wide as the card, between words, or within a word that is wider."""
    line = ""
    for word in text.split():
        while word:
            longer = f"{line} {word}".strip()
            if font.getlength(longer) <= SIZE[0] - 2 * _MARGIN:
                line, word = longer, ""
            elif line:
                yield line
                line = ""
            else:
                fits = next(end for end in range(len(word), 0, -1) if font.getlength(word[:end]) <= SIZE[0] - 2 * _MARGIN)
                yield word[:fits]
                word = word[fits:]
    if line:
        yield line
