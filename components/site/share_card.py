"""Draws the pictures of link previews, PNG, without a browser: the headline of a result with its first figure, or a page's question."""

import io
import textwrap
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any

from analyzers.base import Report
from components.appearance.theme import LIGHT
from components.plots.raster import Box, draw
from components.site import addresses
from components.text.plain_text import ascii_only, shown

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# Size that sites with link previews expect.
SIZE = (1200, 630)
_MARGIN = 56
_NAME, _SAID, _SMALL = 30, 42, 20
_SAID_LINES, _REACH_LINES = 3, 2
# One picture is drawn at a time, in about 0.1 s: previews must not take the cores from analyses.
_drawing = Lock()


def of_report(report: Report) -> bytes:
    """Draw the card of a result: its subject, its headline, and its first figure with data."""
    layout = addresses.layout(report.analyzer)
    plots = layout.plots(report)
    subject, figure = " -> ".join(report.subject().values()), plots[0].draw(report) if plots else None
    return _card(layout.title, subject, layout.summary(report), figure, report.reach())


@lru_cache(32)
def of_page(question: str, about: str) -> bytes:
    """Draw the card of a page."""
    return _card("", about, question, None)


def _card(title: str, subject: str, said: str, figure: "Figure | None", reach: str = "") -> bytes:
    """Draw a card.

    reach: the part of ``said``, at its end, on an answer that does not cover everything; on separate lines, since a long answer is cut.
    """
    from PIL import Image, ImageDraw, ImageFont

    def font(size: int) -> Any:
        return ImageFont.load_default(size)

    with _drawing:
        image = Image.new("RGB", SIZE, LIGHT["card"])
        canvas = ImageDraw.Draw(image, "RGBA")
        canvas.rectangle((0, 0, SIZE[0], 10), LIGHT["accent"])
        top = 40.0
        canvas.text((_MARGIN, top), "Mantissa", LIGHT["ink"], font(_NAME), stroke_width=1, stroke_fill=LIGHT["ink"])
        canvas.text((SIZE[0] - _MARGIN, top + 8), title, LIGHT["dim"], font(_SMALL), anchor="ra")
        top += 56
        if figure is not None:
            canvas.text((_MARGIN, top), shown(ascii_only(subject), 80), LIGHT["dim"], font(_SMALL + 4))
            top += 42
        size = _SAID if figure is not None else _SAID + 22
        said = said.removesuffix(reach)
        lines = textwrap.wrap(ascii_only(said), int(2.05 * (SIZE[0] - 2 * _MARGIN) / size))
        if len(lines) > _SAID_LINES:
            size = int(size * 0.72)
            width = int(2.05 * (SIZE[0] - 2 * _MARGIN) / size)
            lines = textwrap.wrap(ascii_only(said), width, max_lines=_SAID_LINES + 1, placeholder=" ...")
        top += 0 if figure is not None else 90
        for line in lines:
            canvas.text((_MARGIN, top), line, LIGHT["ink"], font(size), stroke_width=1, stroke_fill=LIGHT["ink"])
            top += 1.3 * size
        for line in textwrap.wrap(ascii_only(reach), 92, max_lines=_REACH_LINES, placeholder=" ..."):
            canvas.text((_MARGIN, top + 4), line, LIGHT["infer"], font(_SMALL + 2))
            top += 1.3 * (_SMALL + 2)
        if figure is not None:
            draw(canvas, figure, Box(_MARGIN, top + 16, SIZE[0] - _MARGIN, SIZE[1] - 20), font(_SMALL))
        else:
            for line in textwrap.wrap(ascii_only(subject), 84)[:4]:
                canvas.text((_MARGIN, top + 24), line, LIGHT["dim"], font(_SMALL + 6))
                top += 40
        written = io.BytesIO()
        image.save(written, "PNG", optimize=True)
    return written.getvalue()
