"""The methods pages, rendered on the server without Gradio: the meaning of every answer, its computation and its source, one page for each
analyzer, and one with coverage, all limits and sources.
"""

import re
from typing import NamedTuple

from analyzers import ANALYZERS, limits
from analyzers.account import NAMES
from analyzers.options import describe, offered
from components.look.navigation import OTHERS, navigation, title
from components.results.standalone import Page
from components.site import previews
from components.text.markup import table
from components.text.render import macros

_PARTS = macros("site/templates/methods.html")
_RESULT = macros("site/templates/result.html")
_SECTION = re.compile(r'<h2 id="([^"]+)">(.*?)</h2>')
# The page that belongs to no analyzer.
GENERAL = ""


class _Entry(NamedTuple):
    """A page in the contents. sections: anchor -> heading, HTML of ours."""

    title: str
    address: str
    current: bool
    sections: dict[str, str]


def methods_page(name: str, plots: str, origin: str) -> str:
    """The page about an analyzer, or `GENERAL`. plots: the address of Plotly's script; origin: of the app. Raises KeyError."""
    home = "../" if name else "./"
    text = content(name)
    _, about = OTHERS["Methods"]
    heading = f"{ANALYZERS[name].title}: how it is computed" if name else "How does Mantissa know?"
    body = navigation(home, "Methods") + title(heading, f"{about}.") + str(_PARTS.page(_contents(name, home), text))
    head = previews.tags(previews.of_page("methods", ""), origin) + str(_RESULT.style()) + str(_PARTS.style())
    return Page(heading, "Mantissa", "").served(f"{home}{plots}" if "data-figure" in text else "", head, body)


def content(name: str) -> str:
    """The text of a page, HTML. Raises KeyError if there is no such page."""
    if name:
        text: str = ANALYZERS[name].component("methods").methods()
        return text + _options(name)
    rows = [(limit.variable, f"{limit.value:,}", limit.unit, limit.why) for limit in limits.LIMITS]
    listed = table(("Variable", "Value", "Unit", "Why"), rows, frozenset({1}), stacked=True)
    return str(_PARTS.coverage(NAMES)) + str(_PARTS.limits(listed)) + str(_PARTS.sources())


def _options(name: str) -> str:
    """Every option of an analyzer, HTML."""
    request = ANALYZERS[name].request_model()
    names = dict.fromkeys([*offered(request, "site"), *offered(request, "command")])
    rows = [(option, describe(request, option)) for option in names]
    return str(_PARTS.options(name, table(("Name", "Meaning"), rows, stacked=True)))


def _contents(current: str, home: str) -> list[_Entry]:
    """Every page; the sections of the current one, or of all on the general page."""
    entries = []
    for name, heading in ({each.name: each.title for each in ANALYZERS.values()} | {GENERAL: "Coverage, limits and sources"}).items():
        shown = name == current or not current
        sections = dict(_SECTION.findall(content(name))) if shown else {}
        entries.append(_Entry(heading, f"{home}methods/{name}" if name else f"{home}methods", name == current, sections))
    return entries
