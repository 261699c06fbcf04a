"""Renders the methods, the Markdown of ``docs/methods``, as HTML with a table of contents."""

import re
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt

from analyzers import ANALYZERS
from components.text.render import anchor

_PACKED, _CHECKOUT = Path(__file__).parent / "methods", Path(__file__).parents[1] / "docs" / "methods"
METHODS = _PACKED if _PACKED.is_dir() else _CHECKOUT
"""The folder of the Markdown: in an installed package, or in a checkout."""
INDEX = "index"
"""The page about all answers, served one level above the others."""
_COMMENT = re.compile(r"<!--.*?-->\n")
_PAGE = re.compile(r"^(\w+)\.md(?=#|$)")
_markdown = MarkdownIt("commonmark", {"html": False}).enable("table")


def names() -> list[str]:
    """Return the names of the pages."""
    return sorted(path.stem for path in METHODS.glob("*.md"))


def contents() -> dict[str, str]:
    """Return the names of the pages with their titles, the page about all answers first."""
    order = [INDEX, *(name for name in ANALYZERS if name in names())]
    return {name: ANALYZERS[name].title if name in ANALYZERS else "All answers" for name in order}


def methods_html(name: str) -> tuple[str, list[tuple[str, str]]]:
    """Render a page; returns its HTML, and the anchor and title of each section. Raises KeyError if there is no such page."""
    if name not in names():
        raise KeyError(name)
    tokens = _markdown.parse(_COMMENT.sub("", (METHODS / f"{name}.md").read_text(encoding="utf-8")))
    sections = []
    for token, following in pairwise(tokens):
        if token.type == "heading_open" and token.tag == "h2":
            token.attrSet("id", anchor(following.content))
            sections.append((anchor(following.content), following.content))
        for child in token.children or ():
            if child.type == "link_open":
                child.attrSet("href", _address(str(child.attrGet("href")), name))
    return _markdown.renderer.render(tokens, _markdown.options, {}), sections


def _address(link: str, name: str) -> str:
    """Return the address, from the page ``name``, of a link between the files."""
    target = _PAGE.match(link)
    if target is None:
        return link
    inside = target[1] if name != INDEX else f"methods/{target[1]}"
    return _PAGE.sub("../methods" if target[1] == INDEX else inside, link)
