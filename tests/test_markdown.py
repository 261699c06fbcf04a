"""Markdown: whatever a checkpoint's names hold is text on GitHub, which looks for links after it has removed every backslash."""

import re

import pytest

from analyzers.markdown import plain, table

# What GitHub turns into a link or a notification, in text without markup: mentions, issues, addresses.
_LINKED = re.compile(r"@\w|#\d|\bGH-\d|www\.|://", re.IGNORECASE)


def _rendered(text: str) -> str:
    """The text as CommonMark shows it: backslashes before punctuation are removed, entities are resolved if they survived."""
    assert not re.search(r"(?<!\\)(?:\\\\)*&#?\w+;", text)
    return re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", text)


@pytest.mark.parametrize(
    "hostile", ["@everyone", "org/a#12", "GH-12 gh-3", "www.example.org", "WWW.example.org", "https://a.b", "a@b.cc", "&#64;x"]
)
def test_nothing_links_or_mentions(hostile: str) -> None:
    shown = _rendered(plain(f"model.{hostile}.weight"))
    assert not _LINKED.search(shown) and shown.replace("\u200b", "") == f"model.{hostile}.weight"


@pytest.mark.parametrize(
    "hostile", ["<b>x</b>", "a|b", "`code`", "[a](b)", "![a](b)", "**bold**", "$x$", "~~x~~", "a\\|b", "a\n# b", "\u202eb"]
)
def test_nothing_is_markup(hostile: str) -> None:
    escaped = plain(hostile)
    assert not re.search(r"(?<!\\)(?:\\\\)*[<>|`\[\]*$~!]", escaped) and "\n" not in escaped and "\u202e" not in escaped
    (_, _, row) = table(("a",), [(hostile,)])
    assert row == f"| {escaped} |"


def test_long_names_keep_both_ends_and_a_table_without_rows_is_nothing() -> None:
    (_, rule, row) = table(("a", "b"), [("x" * 500 + "end", "1")], frozenset({1}))
    assert rule == "| --- | ---: |" and len(row) < 330 and "…" in row and "end |" in row
    assert table(("a",), []) == []
