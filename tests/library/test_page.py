"""The page of the library: who may add a label, of which models, and that what others wrote is text."""

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from analyzers.core.errors import AccessDenied, HubUnreachable, InvalidRequest, MantissaError
from components import library_page, store
from components.identity import contributor
from components.library import Identity, Library
from tests.hub import Fault, LocalHub
from tests.library import LINK
from tests.library.reports import report

ANN, BOB = Identity.login("ann"), Identity.login("bob")
FILES = {"config.json": b"{}"}
HOSTILE = "“<img src=x onerror=alert(1)> we trained in bf16 [x](javascript:1)” (section '\"3)"


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Library]:
    with Library(tmp_path / "data") as opened:
        store.set_library(opened)
        yield opened
        store.set_library(None)


def test_a_label_needs_a_login_except_in_an_app_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPACE_ID", "FORWARDED_ALLOW_IPS", "GRADIO_ROOT_PATH", "GRADIO_SERVER_NAME"):
        monkeypatch.delenv(name, raising=False)
    request: Any = SimpleNamespace(headers={})
    assert contributor(None, request) == Identity.local()
    assert contributor({"preferred_username": "mallory"}, request) == Identity.local(), "nobody can log in here"
    for name, value in (("GRADIO_SERVER_NAME", "0.0.0.0"), ("FORWARDED_ALLOW_IPS", "*"), ("SPACE_ID", "org/space")):
        with monkeypatch.context() as served:
            served.setenv(name, value)
            with pytest.raises(InvalidRequest, match="Log in"):
                contributor(None, request)
    with pytest.raises(InvalidRequest, match="another site"):
        contributor(None, SimpleNamespace(headers={"sec-fetch-site": "cross-site"}))  # type: ignore[arg-type]


def test_a_label_has_the_canonical_id_of_a_model_that_is_there(library: Library, hub: LocalHub) -> None:
    hub.add("org/New", FILES, aliases=["org/old"])
    hub.add("org/gated", FILES, gated="manual")
    hub.add("org/private", FILES, private=True)
    assert library_page.add_label(ANN, "https://huggingface.co/org/old", "bf16", LINK, "").item.model == "org/New"
    assert library_page.add_label(ANN, "org/gated", "bf16", LINK, "").where == "saved here"
    for model in ("org/private", "org/none"):
        with pytest.raises(MantissaError):
            library_page.add_label(ANN, model, "bf16", LINK, "")
    hub.fault(Fault("org/New", times=None, status=503))
    with pytest.raises((HubUnreachable, AccessDenied)):
        library_page.add_label(ANN, "org/New", "fp16", LINK, "")
    asked = len(hub.requests)
    invalid = (
        ("sample:tiny-bf16", "bf16", LINK),
        ("org/New", "", LINK),
        ("org/New", "bf16", ""),
        ("x y", "bf16", LINK),
    )
    for model, precision, evidence in invalid:
        with pytest.raises(InvalidRequest):
            library_page.add_label(ANN, model, precision, evidence, "")
    assert len(hub.requests) == asked and library.counts().labels == 61


def test_what_others_wrote_is_text(library: Library) -> None:
    library.add_label("org/name_of_it", "bf16", HOSTILE, ANN)
    library.add_label("org/name_of_it", "fp16", f"{LINK}?<x>".replace("<x>", "a=1&b"), BOB)
    library.add_label("org/name_of_it", "fp32", f"{LINK}/other", BOB)
    library.add_result(report("org/name_of_it", id="a" * 64), public=True)
    shown = library_page.labels_of("org/name_of_it")
    assert "<img" not in shown and "&lt;img src=x onerror=alert(1)&gt;" in shown and f'href="{LINK}/other"' in shown
    assert f"{LINK}?a=1&amp;b" in shown and "1 replaced or hidden" in shown, "the history"
    assert f'href="result/{"a" * 64}"' in shown and "labels disagree" in shown
    for unknown in ("<script>", "a" * 9_000, "org/name@main", "../x"):
        shown = library_page.labels_of(unknown)
        assert 'role="alert"' in shown and "<script>" not in shown and len(shown) < 2_000
    assert library_page.labels_of(" ") == "" and "no labels yet" in library_page.labels_of("org/unknown")


def test_the_table_has_the_answer_first_and_no_empty_column(library: Library) -> None:
    def table(text: str) -> tuple[list[str], list[list[str]]]:
        shown = library_page.models_table(text)
        return re.findall("<button[^>]*>(.*?)</button>", shown), [re.findall("<td[^>]*>(.*?)</td>", row) for row in shown.split("<tr>")[2:]]

    headers, rows = table("opt-13b")
    assert headers == ["Model", "Answer", "Trained in", "Labels", "Updated"] and len(rows) == 1
    assert rows[0][:3] == [
        '<a href="library?model=facebook%2Fopt-13b">facebook/opt-13b</a>',
        "Trained in fp16-mixed, by its labels.",
        "fp16-mixed",
    ]
    library.add_result(report("org/name_of_it", id="a" * 64), public=True)
    headers, rows = table("name_of org")
    assert headers == ["Model", "Answer", "Trained in", "Could be saved", "Results", "Updated"]
    assert rows[0][0].endswith(">org/name_of_it</a>") and "bf16" in rows[0][1]
    passport = report("org/Part_of_it", id="b" * 64)
    in_part = passport.model_copy(update={"request": passport.request.model_copy(update={"include": "mlp"})})
    library.add_result(in_part, public=True)
    _, rows = table("part_of")
    assert rows[0][1] == passport.answer.text, "without a passport of all of it"
    headers, rows = table("")
    assert len(rows) == 61 and "org/" in rows[0][0] and all(any(row[index] for row in rows) for index in range(len(headers)))
    assert "No matching models." in library_page.models_table("nothing like this")
