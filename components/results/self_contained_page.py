"""Renders reports as a page: self-contained, so that it opens offline without a server, or served by one."""

import base64
import gzip
import json
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from components.appearance.theme import document_css
from components.text import macros, render

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_PARTS = macros("results/templates/parts.html")
# Escaping "<" keeps content from ending the script element or opening a comment; JSON decodes it unchanged.
_SAFE_IN_SCRIPT = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})


class Page(NamedTuple):
    """A page of reports. heading, about: plain text; body: HTML containing each `figure`."""

    heading: str
    about: str
    body: str

    def alone(self, figures: bool = True) -> str:
        """Render the page as one file of about 2 MB, including Plotly's script, compressed. figures: False omits the script."""
        return self._whole(self.titled(), packed=_packed_plotly() if figures else "")

    def served(self, plots: str, head: str, body: str) -> str:
        """Render the page with Plotly's script loaded from ``plots``. head: more HTML for the head; body: the whole page."""
        return self._whole(body, plots=plots, head=head, source=" 'self'")

    def titled(self) -> str:
        """Render the body with its heading."""
        return _PARTS.titled(self.heading, self.body)

    def _whole(self, body: str, packed: str = "", plots: str = "", head: str = "", source: str = "") -> str:
        """Render the page.

        packed: `_packed_plotly`; plots: the address of Plotly's script instead; source: another allowed script source.
        """
        named = {"heading": self.heading, "about": self.about, "css": document_css()}
        return render("results/templates/page.html", body=body, packed=packed, plots=plots, head=head, source=source, **named)


@cache
def _packed_plotly() -> str:
    """Return Plotly's script, gzip in base64: 2 MB instead of 4.8."""
    from plotly.offline import get_plotlyjs

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), 9, mtime=0)).decode("ascii")


def report_page(heading: str, names: Sequence[str], articles: Sequence[str]) -> Page:
    """Make a page of several reports, each an `article`; its title names the first."""
    return Page(heading, ", ".join(names[:3]) + (" ..." if len(names) > 3 else ""), "".join(articles))


def article(row: int, parts: Sequence[str]) -> str:
    """Render the cards of one report (HTML), the target of links to ``#report-ROW``."""
    return _PARTS.article(row, parts)


def card(content: str) -> str:
    """Render a card without a title. content: HTML."""
    return _PARTS.card(content)


def figure(title: str, drawn: "Figure", name: str, said: str = "", legend: str = "") -> str:
    """Render a figure in its own card, below sentences and a legend, both HTML. name: an id that is unique on the page."""
    from plotly.utils import PlotlyJSONEncoder

    data = json.dumps(drawn.to_plotly_json(), cls=PlotlyJSONEncoder, allow_nan=False).translate(_SAFE_IN_SCRIPT)
    return _PARTS.figure(title, said, legend, name, data)


def calls(labels: Sequence[str]) -> str:
    """Render a card with the Python calls that return the tables, and the figures of these ``labels``."""
    return _PARTS.calls(labels)


def saving(title: str) -> str:
    """Render buttons that save the figure above them as PNG or SVG, called ``title``."""
    return _PARTS.saving(title)


def folded(title: str, content: str) -> str:
    """Render a card that opens when its title is clicked. content: HTML."""
    return _PARTS.folded(title, content)
