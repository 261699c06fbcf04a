"""Extracts the text of HTML, and the cells of its tables."""

import re
from html import unescape


def text_of(html: str) -> str:
    """Return the text, with single spaces."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())
