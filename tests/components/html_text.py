"""Extracts the text of HTML, and the cells of its tables."""

import re
from html import unescape


def text_of(html: str) -> str:
    """Return the text, with single spaces."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


def rows_of(html: str) -> list[list[str]]:
    """Return the cells of every row of its tables, without headings."""
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", html, flags=re.DOTALL)
    return [[unescape(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)] for row in rows if "<td" in row]
