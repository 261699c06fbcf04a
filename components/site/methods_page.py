"""Renders the methods pages on the server, without Gradio: one per analyzer, and one on all answers, coverage, sources and settings."""

import re
from typing import NamedTuple

from analyzers import ANALYZERS, Analyzer
from analyzers.core import limits
from analyzers.core.coverage import NAMES
from analyzers.core.options import describe, offered
from components.appearance.navigation import OTHERS, navigation, title
from components.results.self_contained_page import Page
from components.site import link_previews
from components.text import macros, table

_PARTS = macros("site/templates/methods.html")
_RESULT = macros("site/templates/result.html")
_MEANING = re.compile(r'<p class="m-meaning">(.*?)</p>', re.DOTALL)
_SECTION = re.compile(r'<h2 id="([^"]+)">(.*?)</h2>')
# Name of the page that belongs to no analyzer.
GENERAL = ""


class _Entry(NamedTuple):
    """A page in the table of contents. sections: anchor -> heading, trusted HTML."""

    title: str
    address: str
    current: bool
    sections: dict[str, str]


def methods_page(name: str, plots: str, origin: str) -> str:
    """Render the page about an analyzer, or `GENERAL`. plots: the address of Plotly's script; origin: of the app. Raises KeyError."""
    home = "../" if name else "./"
    text = content(name)
    _, about = OTHERS["Methods"]
    heading = f"{ANALYZERS[name].title}: how it is computed" if name else "How does Mantissa know?"
    body = navigation(home, "Methods") + title(heading, f"{about}.") + _PARTS.page(_contents(name, home), text)
    head = link_previews.tags(link_previews.of_page("methods", ""), origin) + _RESULT.style() + _PARTS.style()
    return Page(heading, "Mantissa", "").served(f"{home}{plots}" if "data-figure" in text else "", head, body)


def content(name: str) -> str:
    """Return the text of a page, HTML. Raises KeyError if there is no such page."""
    if name:
        text: str = ANALYZERS[name].component("methods").methods()
        return text + _options(name)
    meanings = [(each.title, f"./methods/{each.name}", _meaning(each)) for each in ANALYZERS.values()]
    rows = [(each.variable, f"{each.value:,}", each.unit, each.why, each.when) for each in limits.SETTINGS]
    listed = table(("Variable", "Value", "Unit", "What it bounds", "Change it for"), rows, frozenset({1}), stacked=True)
    return _PARTS.answers(meanings) + _PARTS.coverage(NAMES) + _PARTS.sources() + _PARTS.settings(listed, len(rows))


def _meaning(analyzer: Analyzer) -> str:
    """Return what an analyzer's answer means, HTML: the first paragraph of its page."""
    found = _MEANING.search(analyzer.component("methods").methods())
    return found[1] if found else ""


def _options(name: str) -> str:
    """Render the options of an analyzer as HTML."""
    request = ANALYZERS[name].request_model()
    names = dict.fromkeys([*offered(request, "site"), *offered(request, "command")])
    rows = [(option, describe(request, option)) for option in names]
    return _PARTS.options(name, table(("Name", "Meaning"), rows, stacked=True), len(rows))


def _contents(current: str, home: str) -> list[_Entry]:
    """List every page, with the sections of the current page, or of all pages on the general page."""
    entries = []
    for name, heading in ({each.name: each.title for each in ANALYZERS.values()} | {GENERAL: "All answers, and settings"}).items():
        shown = name == current or not current
        sections = dict(_SECTION.findall(content(name))) if shown else {}
        entries.append(_Entry(heading, f"{home}methods/{name}" if name else f"{home}methods", name == current, sections))
    return entries
