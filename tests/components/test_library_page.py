"""The library's page: its forms, who contributes, and that whatever anybody wrote is shown as text."""

from html.parser import HTMLParser
from typing import Any

import gradio as gr
import pytest

from analyzers.core.errors import CheckpointNotFound, InvalidReference, InvalidRequest
from components.library import Identity, Library, Query
from components.library_page.browse import query_of
from components.library_page.contributing import add_label, thanks, who_you_are
from components.library_page.label_details import model_labels
from components.library_page.list_tables import LABELS, listed
from components.site.identity import COOKIE, LOG_IN, identity
from tests.components.dtype_reports import HOSTILE
from tests.hub import LocalHub

ANN, BOB = Identity.login("ann"), Identity.login("bob", ("org",))
LINK = "https://example.org/paper"
FORMULA, RIGHT_TO_LEFT = '=HYPERLINK("http://evil","x")', "\u202etxt.exe"


class _Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.found: list[dict[str, str | None]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.found.append(dict(attrs))

    def handle_data(self, data: str) -> None:
        self.text += data


class _Visit(gr.Request):
    """A request as Gradio hands it to a function: its headers and cookies."""

    def __init__(self, cookies: dict[str, str] | None = None, headers: dict[str, str] | None = None) -> None:
        self.cookies = cookies or {}
        self.headers = headers or {}


@pytest.mark.parametrize("values", [("evil",), (None,), ("models", "x" * 1000), ("models", "", "y" * 1000)])
def test_what_cannot_be_asked_is_one_sentence(values: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidRequest):
        query_of(1, *values, *[""] * (12 - len(values)))


@pytest.mark.parametrize("text", [HOSTILE, FORMULA, RIGHT_TO_LEFT, "[x](javascript:alert(1))", "<script>alert(1)</script>", "'\"><b>"])
def test_whatever_a_label_says_is_text(library: Library, text: str) -> None:
    saved = library.add_label("org/name", "bf16", LINK, ANN, quote=text)
    for html in (model_labels(library, "org/name"), listed(LABELS, library.labels(Query(text="org/name"))), thanks(saved)):
        shown = _Elements(html)
        assert not {"script", "b onload"} & set(shown.names)
        assert [each.get("src") for name, each in zip(shown.names, shown.found, strict=True) if name == "img"] in (
            [],
            ["badge/org/name.svg"],
        )
        assert not [name for each in shown.found for name in each if name.startswith("on")]
        assert not [each for each in shown.found if (each.get("href") or "").startswith("javascript")]
        assert "\u202e" not in html


def test_a_label_is_stored_under_the_id_the_hub_knows(library: Library, hub: LocalHub) -> None:
    hub.add("org/name", {"README.md": b""}, aliases=["old/name"])
    saved = add_label(ANN, "old/name", "bf16", LINK, "")
    assert saved.item.model == "org/name"
    assert "saved here" in thanks(saved)


def test_what_cannot_be_labelled_is_refused(library: Library, hub: LocalHub) -> None:
    hub.add("org/name", {"README.md": b""})
    hub.add("org/private", {"README.md": b""}, private=True)
    for arguments, error in (
        (("org/name", "bf17", LINK, ""), InvalidRequest),
        (("org/name", "bf16", " ", ""), InvalidRequest),
        (("org/name@main", "bf16", LINK, ""), InvalidRequest),
        (("sample:tiny-bf16", "bf16", LINK, ""), InvalidRequest),
        (("/etc/passwd", "bf16", LINK, ""), InvalidReference),
        (("org/private", "bf16", LINK, ""), CheckpointNotFound),
        (("org/none", "bf16", LINK, ""), CheckpointNotFound),
        (("org/name", "bf16", "x" * 1_000_000, ""), InvalidRequest),
        (("org/name", "bf16", "https://user:pass@example.org", ""), InvalidRequest),
    ):
        with pytest.raises(error):
            add_label(ANN, *arguments)
    assert library.counts().contributors == 1  # the labels it began with


def test_without_a_login_a_browser_has_a_name_of_its_own(library: Library) -> None:
    first, second = (identity(None, _Visit({COOKIE: secret})) for secret in ("one", "two"))
    assert first == identity(None, _Visit({COOKIE: "one"})) != second
    assert (first.provenance, first.name[:6]) == ("local", "local:")
    assert "one" not in first.name
    for nobody in (None, _Visit(), _Visit({COOKIE: ""})):  # a program that says not who it is
        with pytest.raises(InvalidRequest, match="Say who contributes"):
            identity(None, nobody)
    assert "no login" in who_you_are(None, _Visit({COOKIE: "one"}))


def test_with_a_login_the_name_is_the_logins(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = {"preferred_username": "ann", "orgs": [{"preferred_username": "org"}, "?", {}]}
    who = identity(profile, _Visit({COOKIE: "one"}))
    assert (who.name, who.provenance, who.organisations) == ("ann", "login", ("org",))
    assert "You contribute as <b>ann</b>" in who_you_are(profile, None)
    monkeypatch.setenv("SYSTEM", "spaces")
    for name in ("SPACE_ID", "OAUTH_CLIENT_ID", "OAUTH_CLIENT_SECRET", "OAUTH_SCOPES", "OPENID_PROVIDER_URL"):
        monkeypatch.setenv(name, "x")
    with pytest.raises(InvalidRequest, match="Log in"):
        identity(None, _Visit({COOKIE: "one"}))
    assert LOG_IN in who_you_are(None, None)
    with pytest.raises(InvalidRequest, match="not a valid user name"):
        identity({"preferred_username": "<b>"}, None)


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example", "host": "mantissa.example"},
        {"origin": "https://evil.example", "host": "mantissa.example", "x-forwarded-host": "evil.example"},
        {"origin": "https://evil.example", "host": "evil.example", "sec-fetch-site": "cross-site"},
        {"origin": "null", "host": "mantissa.example"},
        {"host": "mantissa.example", "sec-fetch-site": "same-site"},
    ],
)
def test_another_site_cannot_contribute_in_somebodys_name(library: Library, headers: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="another site"):
        identity({"preferred_username": "ann"}, _Visit(headers=headers))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": "mantissa.example"},
        {"origin": "https://mantissa.example", "host": "mantissa.example"},
        {"origin": "https://mantissa.hf.space", "host": "inside:7860"},
        {"origin": "https://mantissa.example", "host": "inside:7860", "sec-fetch-site": "same-origin"},
    ],
)
def test_the_librarys_own_page_and_programs_can(library: Library, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPACE_HOST", "mantissa.hf.space")
    assert identity({"preferred_username": "ann"}, _Visit(headers=headers)).name == "ann"
