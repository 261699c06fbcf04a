"""Markdown: whatever a checkpoint's names hold is text on GitHub, which looks for links after it has removed every backslash."""

import re
from unicodedata import category

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from analyzers.core.markdown import plain, table
from analyzers.core.terminal import printable

# What GitHub documents as a link or a notification, in text that is neither markup nor code: mentions of people and teams, issues and pull
# requests, commits, and the extended autolinks of its Markdown; then its emoji and its mathematics.
_LINKED = re.compile(r"@\w|#\d|\bGH-\d|\b[0-9a-f]{7,40}\b|www\.|\w://|[\w.+-]@[\w-]+\.\w|:[\w+-]+:|\$[^\0]+\$", re.IGNORECASE)
_GITHUB = MarkdownIt("commonmark").enable(["table", "strikethrough"])
_SHA = "8f2a9d4c1b7e6f5a3d2c1b0a9f8e7d6c5b4a3f2e"
_HOSTILE = (
    "@everyone", "@org/team", "org/a#12", "#12", "GH-12 gh-3", "www.example.org", "WWW.example.org", "https://a.b", "ftp://a.b", "a@b.cc",
    "mailto:a@b.cc", "&#64;x", "&commat;x", "http&colon;//a.b", "\\@x", _SHA, _SHA[:7], f"a@{_SHA}", f"org/a@{_SHA[:8]}", "0" * 64,
    "1234567", ":tada:", "std::x::y", "<b>x</b>", "a|b", "a\\|b", "`code`", "``a`b``", "[a](b)", "![a](b)", "[a]: b", "**bold**", "_a_",
    "$x$", "$`x`$", "~~x~~", "a\n# b", "\u202eb", "<!-- a", "<https://a.b>", "# a", "- a", "+ a", "* a", "1. a", "2) a", "===", "---",
    "> a", "~~~", "&amp;", "::error::x", "##[error]x", "a\u200b@b",
)  # fmt: skip


def _text(tokens: list[Token]) -> str:
    """The text that GitHub looks for links in, with NUL where an element interrupts it. Fails at markup but code and spans."""
    for token in tokens:
        assert token.type in ("text", "code_inline") or token.content in ("<span>", "</span>"), token
    return "".join(token.content if token.type == "text" else "\0" for token in tokens)


def _is_harmless(tokens: list[Token], hostile: str) -> None:
    text = _text(tokens)
    assert not _LINKED.search(text), text
    shown = "".join(token.content for token in tokens if token.type != "html_inline")
    assert shown.replace("\u200b", "") == printable(hostile)


@pytest.mark.parametrize("hostile", _HOSTILE)
def test_nothing_is_markup_links_or_mentions(hostile: str) -> None:
    """Alone on a line, within one, and as a cell of a table; and the Markdown itself is visible as a whole."""
    for given in (hostile, f"model.{hostile}.weight", f"The tensor {hostile} is odd."):
        escaped = plain(given)
        assert not any(category(character) in ("Cc", "Cf") for character in escaped)
        first, (_, inline, _) = _GITHUB.parse(escaped)[0], _GITHUB.parse(escaped)
        assert first.type == "paragraph_open" and inline.children
        _is_harmless(inline.children, given)
        rows = [token for token in _GITHUB.parse("\n".join(table(("a", "b"), [(given, "end")]))) if token.type == "inline"]
        assert len(rows) == 4 and rows[2].children and rows[3].content == "end"
        _is_harmless(rows[2].children, given)


@pytest.mark.parametrize(
    "live", ["@everyone", "org/a#12", "GH-12", "www.a.b", "https://a.b", "a@b.cc", _SHA, ":tada:", "$x$", "**a**", "<b>"]
)
def test_the_oracle_finds_what_is_live(live: str) -> None:
    inline = _GITHUB.parseInline(live)[0].children or []
    with pytest.raises(AssertionError):
        _is_harmless(inline, live)


def test_long_names_keep_both_ends_and_a_table_without_rows_is_nothing() -> None:
    (_, rule, row) = table(("a", "b"), [("x" * 500 + "end", "1")], frozenset({1}))
    assert rule == "| --- | ---: |" and len(row) < 330 and "…" in row and "end |" in row
    assert table(("a",), []) == []
