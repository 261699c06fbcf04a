"""A page that is complete in itself: nothing is requested from elsewhere, and it opens without a server."""

import json
from html import escape
from typing import TYPE_CHECKING

from components.markup import caption
from components.theme import document_css

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
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "connect-src 'none'; form-action 'none'; base-uri 'none'"
)
# "<" cannot end a script element or open a comment once it is written as an escape, and JSON reads it back the same.
_SAFE_IN_SCRIPT = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})
_DRAW = (
    "for (const e of document.querySelectorAll('[data-figure]')) {"
    " const f = JSON.parse(document.getElementById(e.dataset.figure).textContent);"
    " Plotly.newPlot(e, f.data, f.layout, {responsive: true, displayModeBar: false}); }"
)


def page(heading: str, about: str, body: str) -> str:
    """The page (about 5 MB: the plots' script is in it). heading, and what it is about: plain text; body: HTML with `figure` in it."""
    from plotly.offline import get_plotlyjs

    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="referrer" content="no-referrer">'
        f"<title>{escape(heading)}: {escape(about)}</title><style>{document_css()}{_PAGE_CSS}</style></head>"
        f"<body><main><h1>{escape(heading)}</h1>{body}</main>"
        f"<script>{get_plotlyjs()}</script><script>{_DRAW}</script></body></html>\n"
    )


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
