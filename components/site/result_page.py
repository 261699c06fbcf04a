"""Renders a stored report as a page on the server, without Gradio: for links in chats, iframes and crawlers."""

from typing import Any

from analyzers.core.formatting import day
from analyzers.core.report import Report
from components.appearance.navigation import navigation
from components.results.html_documents import page_of
from components.results.self_contained_page import Page, report_page
from components.site import addresses, link_previews, stored_results
from components.text import macros, tag, tile
from components.text.headline import answered, card, model_head, tiles

_PARTS = macros("site/templates/result.html")
_MISSING = (
    "There is no stored result with this id that can be shown: it was never stored, was deleted to make room for newer ones, or was made "
    "by another version of Mantissa. "
    "Open the model's own page to compute it again."
)


def result_page(report: Report, made: str, plots: str, embedded: bool, origin: str = "") -> str:
    """Render the page of a stored report.

    made: when it was stored, UTC; plots: the address of Plotly's script; embedded: the result only, for a frame; origin: the address of the
    app.
    """
    page = page_of([report])
    meta = link_previews.tags(link_previews.of_report(report), origin, "article") + _PARTS.style()
    if embedded:
        return page.served(plots, meta, _PARTS.embedded(page.body, page.heading, f"../{addresses.stored(report.id)}"))
    short = addresses.short(report.id) if stored_results.is_stored(report) else ""
    related = addresses.layout(report.analyzer).related(report)
    body = _PARTS.alone(page.body, day(made) if made else "", f"../{addresses.recompute(report)}", report.id, short, related)
    return page.served(plots, meta, navigation("../") + page._replace(body=body).titled())


def small_frame(report: Any) -> str:
    """Render the headline of a stored report for a small frame: no figures, no tables, and no script, less than 100 kB.

    If the result has verdicts, these are its tiles, without their explanations.
    """
    layout = addresses.layout(report.analyzer)
    shown = [("", tile(each.question, each.answer, tag(each.kind, each.how), "")) for each in layout.verdicts(report)]
    headline = layout.headline(report, False)
    if shown and hasattr(report, "checkpoint"):
        said = answered(report, False)
        headline = card(layout.title, model_head(layout.name(report), report.checkpoint, layout.title), said, tiles(report, False, *shown))
    page = report_page(layout.title, [layout.name(report)], [headline])
    return page.served("", _PARTS.style(), _PARTS.embedded(page.body, page.heading, f"../{addresses.stored(report.id)}"))


def missing_page(restored: bool = True) -> str:
    """Render the page for an unknown id. restored: whether the library has been read from its dataset, so that the result is not stored."""
    said = (
        ("Not stored here", "no such result", _MISSING)
        if restored
        else ("Not read yet", "library being restored", stored_results.NOT_RESTORED)
    )
    page = Page(said[0], said[1], _PARTS.missing(said[2]))
    return page.served("", _PARTS.not_indexed(), navigation("../") + page.titled())


def not_found_page(home: str) -> str:
    """Render the page for an address that the app does not have. home: the address of the first page, with a trailing slash."""
    page = Page("Page not found", "Mantissa", _PARTS.not_found(home))
    return page.served("", _PARTS.not_indexed(), navigation(home) + page.titled())
