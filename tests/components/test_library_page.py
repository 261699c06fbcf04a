"""The library's page: its lists, its forms, who contributes, and that whatever anybody wrote is shown as text."""

from html.parser import HTMLParser
from typing import Any

import gradio as gr
import pytest

from analyzers.core.errors import CheckpointNotFound, InvalidReference, InvalidRequest
from components.library import FLAG_REASONS, Identity, Library, Query
from components.library_page.browse import PER_PAGE, query_of
from components.library_page.contributing import add_label, thanks, who_you_are
from components.library_page.label_details import model_labels
from components.library_page.library_downloads import counted
from components.library_page.list_tables import KINDS, LABELS, MODELS, RESULTS, extent, listed
from components.site.identity import COOKIE, LOG_IN, identity
from tests.components.dtype_reports import HOSTILE, report
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


def _ask(kind: str, text: str = "", page: int = 1, **chosen: Any) -> tuple[str, Query]:
    fields = [chosen.get(name, "") for name in ("precision", "storage", "passed_through", "trained_in", "fp16_risk", "analyzer")]
    return query_of(
        page,
        kind,
        text,
        *fields,
        chosen.get("contributor", ""),
        chosen.get("disputed", False),
        chosen.get("order", ""),
        chosen.get("turned", False),
    )


@pytest.mark.parametrize("kind", [MODELS, LABELS, RESULTS])
def test_every_order_of_every_list_is_one_the_library_knows(library: Library, kind: str) -> None:
    for order, (sort, descending) in KINDS[kind].orders.items():
        named, query = _ask(kind, order=order)
        assert (named, query.sort, query.descending, query.per_page) == (kind, sort, descending, PER_PAGE)
        KINDS[kind].read(library, query)


@pytest.mark.parametrize("kind", [MODELS, LABELS, RESULTS])
def test_the_titles_of_a_list_sort_it_both_ways(library: Library, kind: str) -> None:
    library.add_result(report("org/name", id="1" * 64), public=True)
    library.add_label("zoo/name", "bf16", LINK, ANN)
    for title, _, order in KINDS[kind].columns:
        first, turned = (_ask(kind, order=title, turned=turned)[1] for turned in (False, True))
        page = KINDS[kind].read(library, first)
        shown = _Elements(listed(kind, page, title, first.descending))
        (heading,) = [each for each in shown.found if "aria-sort" in each and each["aria-sort"] != "none"] or [{}]
        assert (heading.get("aria-sort"), order and (first.sort, first.descending)) == (
            (None, None) if order is None else ("descending" if order[1] else "ascending", order)
        )
        assert first.descending != turned.descending
        sortable = [column.title for column in KINDS[kind].columns if column.order]
        assert [each["data-sort"] for each in shown.found if "data-sort" in each] == sortable


def test_the_number_of_results_of_a_model_links_to_them(library: Library) -> None:
    library.add_result(report("org/name", id="1" * 64), public=True)
    shown = _Elements(listed(MODELS, library.models(Query(text="org/name"))))
    assert "library?show=results&q=org%2Fname" in [each.get("href") for each in shown.found]


def test_the_labels_it_begins_with_have_links(library: Library) -> None:
    rows = library.labels(Query(per_page=500)).rows
    assert len(rows) == 59 and all(row.label.evidence_link.startswith("https://") and row.label.evidence_quote for row in rows)
    shown = _Elements(model_labels(library, "facebook/opt-13b"))
    assert "https://arxiv.org/abs/2205.01068" in [each.get("href") for each in shown.found]
    assert "arXiv 2205.01068 (OPT)" in shown.text and "“" not in shown.text


def test_lists_are_searched_filtered_and_paged_on_the_server(library: Library) -> None:
    for number in range(PER_PAGE + 3):
        library.add_label(f"zoo/animal-{number:02}", "bf16" if number % 2 else "fp32", LINK, Identity.login(f"user{number}"))
    kind, query = _ask(LABELS, "zoo", page=2, order="Model")
    page = KINDS[kind].read(library, query)
    assert (page.total, len(page.rows)) == (PER_PAGE + 3, 3)
    assert extent(page, PER_PAGE) == f"{PER_PAGE + 1} to {PER_PAGE + 3} of {PER_PAGE + 3}"
    assert "zoo/animal-27" in listed(kind, page)
    _, query = _ask(LABELS, "zoo", precision="fp32")
    assert {row.label.precision for row in library.labels(query).rows} == {"fp32"}
    _, query = _ask(LABELS, contributor="user3")
    assert [row.label.model for row in library.labels(query).rows] == ["zoo/animal-03"]
    kind, query = _ask(MODELS, "no such thing")
    assert "No matching models" in listed(kind, KINDS[kind].read(library, query))


@pytest.mark.parametrize("values", [("evil",), (None,), ("models", "x" * 1000), ("models", "", "y" * 1000)])
def test_what_cannot_be_asked_is_one_sentence(values: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidRequest):
        query_of(1, *values, *[""] * (12 - len(values)))


def test_a_model_shows_its_facts_and_both_kinds_of_answers(library: Library) -> None:
    library.add_result(report("org/name", id="1" * 64), public=True)
    shown = _Elements(listed(MODELS, library.models(Query(text="org/name"))))
    assert "F32" in shown.text and "bf16" in shown.text and "inference" in shown.text and "weights fit" in shown.text
    assert any(each.get("href") == f"result/{'1' * 64}" for each in shown.found)
    library.add_label("org/name", "fp16-mixed", LINK, ANN)
    shown = _Elements(listed(MODELS, library.models(Query(text="org/name"))))
    assert "fp16-mixed" in shown.text and "1 label" in shown.text and "inference" not in shown.text
    results = _Elements(listed(RESULTS, library.results(Query())))
    assert "dtype" in results.text and "saved here" in results.text


def test_disagreement_is_shown_with_the_evidence_of_each_side(library: Library) -> None:
    library.add_label("org/name", "bf16", LINK, ANN, "we trained in bf16")
    library.add_label("org/name", "fp16-mixed", "the model card", BOB, quote="Trained with fp16 autocast.")
    flagged = library.add_label("org/name", "bf16", LINK, Identity.login("carl"))
    library.add_flag(flagged.item.id, FLAG_REASONS[0], ANN)
    shown = _Elements(model_labels(library, "org/name"))
    for text in (
        "labels disagree",
        "bf16 2, fp16-mixed 1",
        "“we trained in bf16”",
        "“Trained with fp16 autocast.” (the model card)",
        "of the organisation",
        "1 flag",
    ):
        assert text in shown.text, text
    assert [each["href"] for each in shown.found if each.get("target") == "_blank"] == [LINK, LINK]
    assert sum(each.get("class") == "m-flag" for each in shown.found) == 3
    library.add_label("org/name", "bf16", LINK, BOB)
    shown = _Elements(model_labels(library, "ORG/name"))
    assert "labels disagree" not in shown.text.split("replaced or hidden")[0]
    assert "1 label replaced or hidden" in shown.text


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


def test_what_cannot_be_labelled_is_said(library: Library, hub: LocalHub) -> None:
    hub.add("org/name", {"README.md": b""})
    hub.add("org/gated", {"README.md": b""}, gated="auto")
    hub.add("org/private", {"README.md": b""}, private=True)
    for arguments, error, said in (
        (("org/name", "", LINK, ""), InvalidRequest, "Choose the precision the model was trained in"),
        (("org/name", "bf17", LINK, ""), InvalidRequest, "precision"),
        (("org/name", "bf16", " ", ""), InvalidRequest, "A label needs evidence"),
        (("org/name@main", "bf16", LINK, ""), InvalidRequest, "leave out the revision"),
        (("sample:tiny-bf16", "bf16", LINK, ""), InvalidRequest, "models on the Hub"),
        (("/etc/passwd", "bf16", LINK, ""), InvalidReference, "command line only"),
        (("org/private", "bf16", LINK, ""), CheckpointNotFound, "not found"),
        (("org/none", "bf16", LINK, ""), CheckpointNotFound, "not found"),
        (("org/name", "bf16", "x" * 1_000_000, ""), InvalidRequest, "limit is"),
        (("org/name", "bf16", "https://user:pass@example.org", ""), InvalidRequest, "The link"),
    ):
        with pytest.raises(error, match=said):
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


def test_the_counts_are_the_librarys(library: Library) -> None:
    there = library.counts()
    library.add_label("org/name", "bf16", LINK, ANN)
    shown = _Elements(counted())
    assert f"the training precision of {there.models + 1} models, each with its evidence" in shown.text
    assert "the published weight figures of 29 models; no stored results yet" in shown.text
    assert library.add_result(report("sample:tiny-bf16", id="1" * 64), public=True)
    assert library.counts().sentence.endswith("; no stored results of models on the Hub yet.")
