"""A stored report as a page rendered on the server, without Gradio: for links in chats, iframes and crawlers."""

from html import escape

from analyzers.base import Report
from analyzers.formatting import day
from components.look.navigation import PAGES
from components.results.export import page_of
from components.results.standalone import Page
from components.site import addresses
from components.text.plain_text import html, shown

# Longest title and description in a link preview.
_TITLE, _DESCRIPTION = 100, 300
_CSS = """
.m-top { display: flex; gap: 6px 20px; flex-wrap: wrap; margin: 4px 0 20px; font: 400 15px/1.6 var(--m-sans); align-items: baseline; }
.m-top b { font-size: 20px; letter-spacing: -.02em; }
.m-top a { color: var(--m-dim); text-decoration: none; }
.m-top a:hover { color: var(--m-ink); text-decoration: underline; text-underline-offset: 4px; }
.m-about { margin: 0 0 16px; color: var(--m-dim); font: 400 14px/1.55 var(--m-sans); overflow-wrap: anywhere; }
.m-about a { color: var(--m-accent); }
"""
_MISSING = (
    "There is no stored result with this id: it was never stored, or was deleted to make room for newer ones. "
    "Open the model's own page to compute it again."
)


def result_page(report: Report, made: str, plots: str, embedded: bool) -> str:
    """The page. made: when it was stored, UTC; plots: the address of Plotly's script; embedded: the result only, for a frame."""
    page = page_of([report])
    _, layout = addresses.layout(report.analyzer)
    said = layout.summary(report)
    about = shown(", ".join(report.subject().values()), _TITLE - len(page.heading) - 2)
    meta = _open_graph(f"{page.heading}: {about}", said)
    again = escape(f"../{addresses.again(report)}")
    if embedded:
        link = f'<a href="../{addresses.stored(report.id)}" target="_blank" rel="noopener">Mantissa</a>'
        return page.served(plots, meta, f'{page.body}<p class="m-about">{html(page.heading)} by {link}.</p>')
    lines = (
        f"Stored {html(day(made))}, and not computed again. " if made else "",
        f'<a href="{again}">Open in Mantissa</a> for its tables and downloads. <a href="{report.id}.json">JSON</a>. ',
        f"Report {report.id[:12]}.",
    )
    told = page._replace(body=f'<p class="m-about">{"".join(lines)}</p>{page.body}')
    return page.served(plots, meta, _navigation() + told.titled())


def missing_page() -> str:
    """The page for an unknown id."""
    page = Page("Not stored here", "no such result", f'<p class="m-about" role="alert">{_MISSING}</p>')
    return page.served("", f'<meta name="robots" content="noindex"><style>{_CSS}</style>', _navigation() + page.titled())


def _open_graph(title: str, description: str) -> str:
    """Metadata for link previews: plain text in attributes."""
    named = {"og:title": shown(title, _TITLE), "og:description": shown(description, _DESCRIPTION)}
    named |= {"og:type": "article", "og:site_name": "Mantissa", "twitter:card": "summary"}
    tags = "".join(f'<meta property="{name}" content="{escape(text)}">' for name, text in named.items())
    return f'{tags}<meta name="description" content="{escape(named["og:description"])}"><style>{_CSS}</style>'


def _navigation() -> str:
    links = "".join(f'<a href="../{address.removeprefix("./")}">{name}</a>' for name, address in PAGES.items())
    return f'<nav class="m-top" aria-label="Pages"><b>Mantissa</b>{links}</nav>'
