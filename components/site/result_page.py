"""A stored report as a page of its own, made on the server: what a link in a chat, an iframe or a crawler opens. No Gradio is loaded."""

from analyzers.base import Report
from analyzers.formatting import day
from components.look.navigation import PAGES
from components.results.export import page_of
from components.results.standalone import Page
from components.site import addresses
from components.text.plain_text import shown
from components.text.render import macros

# Of the title and the description that others show of a link.
_TITLE, _DESCRIPTION = 100, 300
_PARTS = macros("site/templates/result.html")
_MISSING = (
    "There is no stored result of this id here: it may never have been stored, or have made room for newer ones. "
    "A link to the model itself reads it again."
)


def result_page(report: Report, made: str, plots: str, embedded: bool) -> str:
    """The page. made: when it was stored, UTC; plots: the address of the script that draws; embedded: the result alone, for a frame."""
    page = page_of([report])
    _, layout = addresses.layout(report.analyzer)
    said = layout.summary(report)
    about = shown(", ".join(report.subject().values()), _TITLE - len(page.heading) - 2)
    meta = _open_graph(f"{page.heading}: {about}", said)
    if embedded:
        return page.served(plots, meta, str(_PARTS.embedded(page.body, page.heading, f"../{addresses.stored(report.id)}")))
    body = str(_PARTS.alone(page.body, day(made) if made else "", f"../{addresses.again(report)}", report.id))
    return page.served(plots, meta, _navigation() + page._replace(body=body).titled())


def missing_page() -> str:
    """The page for an id that nothing is stored under."""
    page = Page("Not stored here", "no such result", str(_PARTS.missing(_MISSING)))
    return page.served("", str(_PARTS.not_indexed()), _navigation() + page.titled())


def _open_graph(title: str, description: str) -> str:
    """What others show of a link to this page: plain text in attributes."""
    named = {"og:title": shown(title, _TITLE), "og:description": shown(description, _DESCRIPTION)}
    named |= {"og:type": "article", "og:site_name": "Mantissa", "twitter:card": "summary"}
    return str(_PARTS.meta(list(named.items()), named["og:description"]))


def _navigation() -> str:
    return str(_PARTS.navigation([(name, address.removeprefix("./")) for name, address in PAGES.items()]))
