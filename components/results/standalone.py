"""Reports as a page: complete in itself, so that nothing is requested from elsewhere and it opens without a server; or served by one."""

import json
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from components.look.theme import document_css
from components.text.markup import caption

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_PAGE_CSS = """
body { margin: 0; background: var(--m-bg); color: var(--m-ink); font: 15px/1.5 var(--m-sans); }
main { max-width: 1080px; margin: 0 auto; padding: 20px; }
h1 { font: 700 26px/1.25 var(--m-sans); letter-spacing: -.02em; margin: 8px 0 16px; }
article { margin: 0 0 36px; }
article > section, article > div, article > details { margin-bottom: 16px; }
h3.m-figure-title { font: 600 14px/1.4 var(--m-sans); margin: 0; padding: 14px 18px 0; }
.m-figure { padding: 6px 12px; }
summary { padding: 12px 18px; cursor: pointer; color: var(--m-dim); }
:focus-visible { outline: 2px solid var(--m-accent); outline-offset: 2px; }
"""
# Scripts and styles are the page's own; nothing may be fetched, sent, framed or submitted.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'{source}; style-src 'unsafe-inline'; img-src data: blob:; "
    "connect-src 'none'; form-action 'none'; base-uri 'none'"
)
# "<" cannot end a script element or open a comment once it is written as an escape, and JSON reads it back the same.
_SAFE_IN_SCRIPT = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})
_DRAW = (
    "for (const e of document.querySelectorAll('[data-figure]')) {"
    " const f = JSON.parse(document.getElementById(e.dataset.figure).textContent);"
    " Plotly.newPlot(e, f.data, f.layout, {responsive: true, displayModeBar: false}); }"
)


class Page(NamedTuple):
    """heading, and what it is about: plain text; body: HTML with `figure` in it."""

    heading: str
    about: str
    body: str

    def alone(self) -> str:
        """The page as one file (about 5 MB: the plots' script is in it)."""
        from plotly.offline import get_plotlyjs

        return self._whole(f"<script>{get_plotlyjs()}</script>", "", self.titled())

    def served(self, plots: str, head: str, body: str) -> str:
        """The page without the plots' script, which is at the address ``plots``. head: more HTML for the head; body: all of the page."""
        return self._whole(f'<script src="{escape(plots)}"></script>' if plots else "", head, body, " 'self'")

    def titled(self) -> str:
        """The body below its heading."""
        return f"<h1>{escape(self.heading)}</h1>{self.body}"

    def _whole(self, script: str, head: str, body: str, source: str = "") -> str:
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY.format(source=source)}">'
            '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="referrer" content="no-referrer">'
            f"<title>{escape(self.heading)}: {escape(self.about)}</title>{head}<style>{document_css()}{_PAGE_CSS}</style></head>"
            f"<body><main>{body}</main>{script}{f'<script>{_DRAW}</script>' if script else ''}</body></html>\n"
        )


def report_page(heading: str, names: Sequence[str], articles: Sequence[str]) -> Page:
    """The page of several reports, each an `article`; its title names the first of them."""
    return Page(heading, ", ".join(names[:3]) + (" ..." if len(names) > 3 else ""), "".join(articles))


def article(row: int, parts: Sequence[str]) -> str:
    """The cards of one report (HTML), which a link to ``#report-ROW`` finds."""
    return f'<article id="report-{row}">{"".join(parts)}</article>'


def card(content: str) -> str:
    """A card without a title. content: HTML."""
    return f'<div class="m-card">{content}</div>'


def figure(title: str, drawn: "Figure", name: str, said: str = "", legend: str = "") -> str:
    """A figure in a card of its own, with a sentence and a legend (HTML) above it. name: an id that is unique on the page."""
    from plotly.utils import PlotlyJSONEncoder

    data = json.dumps(drawn.to_plotly_json(), cls=PlotlyJSONEncoder, allow_nan=False).translate(_SAFE_IN_SCRIPT)
    return (
        f'<div class="m-card"><h3 class="m-figure-title">{escape(title)}</h3>{caption(said) if said else ""}{legend}'
        f'<div class="m-figure" data-figure="{name}"></div><script type="application/json" id="{name}">{data}</script></div>'
    )


def folded(title: str, content: str) -> str:
    """A card that opens when its title is clicked. content: HTML."""
    return f'<details class="m-card"><summary>{escape(title)}</summary>{content}</details>'
