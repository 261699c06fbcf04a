"""Provides numbers, words and HTML fragments for display, and escapes all external text."""

from analyzers.core import formatting as numbers
from components.text.display_names import commit, model_name, source_name
from components.text.markup import caption, cited, head, link, notes, table, tag, tile
from components.text.plain_text import html, prose, shown
from components.text.render import Sentences, macros, render

__all__ = [
    "Sentences", "caption", "cited", "commit", "head", "html", "link", "macros", "model_name", "notes", "numbers", "prose", "render",
    "shown", "source_name", "table", "tag", "tile",
]  # fmt: skip
