"""Draws the card of a result for link previews: its subject, its answer and its tiles, PNG."""

import io
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

import gradio
from PIL import Image, ImageDraw, ImageFont

from analyzers.core.report import Report
from components.result.layout import layout_of
from components.text import shown
from components.theme import LIGHT

SIZE = (1200, 630)
_MARGIN = 56
# Gradio's own font, since Pillow's has neither superscripts nor arrows.
_FONTS = Path(gradio.__file__).parent / "templates/frontend/static/fonts/SourceSansPro"
_COLOURS = {"proof": "proof", "inference": "infer", "estimate": "infer", "label": "label", "warning": "bad"}


def card(report: Report) -> bytes:
    """Draw the card of a report."""
    layout = layout_of(report)
    tiles = [(tile.label, tile.value, tile.kind, report.tag(tile)) for tile in layout.tiles(report)[:4]]
    return _drawn(f"Mantissa: {layout.title}", " → ".join(report.subject().values()), report.answer.text, tiles)


def question_card(heading: str, about: str) -> bytes:
    """Draw the card of a page."""
    return _drawn("Mantissa", about, heading, [])


def _drawn(title: str, subject: str, said: str, tiles: list[tuple[str, str, str, str]]) -> bytes:
    image = Image.new("RGB", SIZE, LIGHT["card"])
    draw = ImageDraw.Draw(image)
    draw.text((_MARGIN, 40), title, LIGHT["dim"], _font(26))
    draw.text((_MARGIN, 82), textwrap.shorten(shown(subject, 90), 90, placeholder="…"), LIGHT["dim"], _font(28))
    size = 44 if len(said) < 120 else 34
    lines = textwrap.wrap(shown(said, 400), 2100 // size)[:5]
    draw.multiline_text((_MARGIN, 136), "\n".join(lines), LIGHT["ink"], _font(size, "Bold"), spacing=8)
    width = (SIZE[0] - 2 * _MARGIN) // max(1, len(tiles))
    for number, (label, value, kind, tag) in enumerate(tiles):
        x = _MARGIN + number * width
        draw.line((x, 440, x + width - 24, 440), LIGHT["line"], 2)
        draw.text((x, 456), shown(label, 28), LIGHT["dim"], _font(22))
        for line, text in enumerate(textwrap.wrap(shown(value, 48), max(8, width // 17))[:2]):
            draw.text((x, 486 + 40 * line), text, LIGHT["ink"], _font(34, "Bold"))
        draw.text((x, 572), shown(tag, 32), LIGHT[_COLOURS.get(kind, "dim")], _font(22))
    image.save(packed := io.BytesIO(), "PNG")
    return packed.getvalue()


@cache
def _font(size: int, weight: str = "Regular") -> Any:
    return ImageFont.truetype(str(_FONTS / f"SourceSansPro-{weight}.woff2"), size)
