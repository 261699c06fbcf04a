"""Renders the navigation bar, the title of every page, and links to the questions that the other pages answer."""

from pathlib import Path

import gradio as gr

from analyzers import ANALYZERS, with_pages
from components.text import macros

_PARTS = macros("appearance/templates/navigation.html")
_TEMPLATES = Path(__file__).parent / "templates"
# Pages that belong to no analyzer: title -> address, and what the page shows.
OTHERS = {
    "Library": ("library", "What models were trained in, and who says so: labels with evidence, and stored results"),
    "Methods": ("methods", "What every answer means, how it is computed, how often it is wrong, and all limits"),
}


def navigation(home: str = "./", current: str = "") -> str:
    """Render the product's name and a link to each page, as HTML.

    home: the address of the first page with a slash at its end, relative so that it works under any proxy prefix; current: the title of
    this page, which is highlighted.
    """
    pages = with_pages()
    groups = {
        "Read the weights": [(each.title, each.short, each.address) for each in pages if not each.runs_model],
        "Run the model": [(each.title, each.short, each.address) for each in pages if each.runs_model],
        "Look up": [(name, name, address) for name, (address, _) in OTHERS.items()],
    }
    return _PARTS.navigation(groups, home, current)


def build_navigation(current: str) -> None:
    """Add the `navigation` to a Gradio page."""
    gr.HTML(navigation(current=current), elem_classes="m-plain")


def title(question: str, about: str, methods: str = "") -> str:
    """Render the heading of a page, a sentence below it, and a link to the section of the methods page on it, as HTML."""
    return _PARTS.title(question, about, methods)


def questions(current: str) -> str:
    """Render a link with a picture to every page except ``current``, as HTML."""
    linked = [(each.title, each.component("page").PAGE.question, each.address or "./", _picture(each.name)) for each in with_pages()]
    linked += [
        (name, about, address, (_TEMPLATES / f"{address}.svg").read_text(encoding="utf-8")) for name, (address, about) in OTHERS.items()
    ]
    return _PARTS.questions([each for each in linked if each[0] != current])


def _picture(analyzer: str) -> str:
    """Return the picture of an analyzer's page, SVG; empty if it has none."""
    folder = Path(str(ANALYZERS[analyzer].component("form").__file__)).parent
    path = folder / "templates/picture.svg"
    return path.read_text(encoding="utf-8") if path.exists() else ""
