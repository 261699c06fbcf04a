"""Labels without a login: shown as proposals, in no headline, badge or verdict until a login confirms them; and an app of one's own."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from analyzers.core.errors import InvalidRequest
from components.dtype.result import RESULT
from components.library import Identity, Library, Query
from components.library_page.contributing import confirm_label, thanks, who_you_are
from components.library_page.label_details import model_labels
from components.library_page.list_tables import LABELS, MODELS, listed
from components.site import stored_results
from components.site.badges import TRAINED, parts
from components.site.identity import COOKIE, LOG_IN
from tests.components.dtype_reports import report
from tests.components.test_library_page import _Visit
from tests.hub import LocalHub

VISITOR, ANN = Identity.local("visitor"), Identity.login("ann")
LINK = "https://example.org/paper"
_OAUTH = ("OAUTH_CLIENT_ID", "OAUTH_CLIENT_SECRET", "OAUTH_SCOPES", "OPENID_PROVIDER_URL")
SPACE = {"SYSTEM": "spaces", "SPACE_ID": "org/app"} | dict.fromkeys(_OAUTH, "x")


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Library]:
    """Open the library of a visitor's own app."""
    with Library.open(tmp_path / "own", own=True) as opened:
        stored_results.set_library(opened)
        yield opened
        stored_results.set_library(None)


def _words(html: str) -> str:
    return " ".join(re.sub("<[^>]*>", " ", html).split())


def _badge(library: Library) -> str:
    return parts(library.model("org/name"), [TRAINED])[0].value


def test_a_proposal_changes_no_answer(library: Library) -> None:
    made = report("org/name", id="1" * 64)
    library.add_result(made, public=True)
    before = RESULT.headline(made, True), _badge(library)
    saved = library.add_label("org/name", "fp16-mixed", LINK, VISITOR)
    assert (RESULT.headline(made, True), _badge(library)) == before
    assert "Your proposal is saved here" in _words(thanks(saved))
    row = _words(listed(MODELS, library.models(Query(text="org/name"))))
    assert "bf16 inference fp16-mixed proposal" in row
    assert "fp16-mixed proposal" in _words(listed(LABELS, library.labels(Query(text="org/name"))))
    card = _words(model_labels(library, "org/name"))
    assert "Proposed without a login: fp16-mixed . It counts once a contributor with a login confirms it." in card
    assert "data-confirm" not in model_labels(library, "org/name")  # this app has no login
    assert "Your labels are proposals" in who_you_are(None, _Visit({COOKIE: "one"}))


def test_a_login_confirms_a_proposal_with_its_evidence(library: Library, hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("org/name", {"README.md": b""})
    for name, value in SPACE.items():
        monkeypatch.setenv(name, value)
    proposed = library.add_label("org/name", "bf16", "section 3", VISITOR, quote="We trained in bf16.").item
    assert f'data-confirm="{proposed.id}"' in model_labels(library, "org/name")
    with pytest.raises(InvalidRequest, match=LOG_IN):
        confirm_label(Identity.local("other"), proposed.id)
    with pytest.raises(InvalidRequest, match="no longer exists"):
        confirm_label(ANN, "0" * 64)
    saved = confirm_label(ANN, proposed.id)
    assert (saved.item.evidence_quote, saved.item.contributor, saved.proposal) == (proposed.evidence_quote, "ann", False)
    assert _badge(library) == "bf16"
    shown = model_labels(library, "org/name")
    assert "Labelled bf16 by 1 contributor." in _words(shown) and "data-confirm" not in shown and "bf16 proposal" in _words(shown)


def test_an_own_label_is_marked_wherever_it_counts(own: Library) -> None:
    made = report("org/name", id="1" * 64)
    own.add_result(made, public=True)
    saved = own.add_label("org/name", "fp16-mixed", LINK, VISITOR)
    assert "Your label is saved here" in _words(thanks(saved))
    assert "Own label" in _words(RESULT.headline(made, True)) and _badge(own) == "fp16-mixed, own label"
    assert "fp16-mixed own label" in _words(listed(MODELS, own.models(Query(text="org/name"))))
    assert "fp16-mixed own label" in _words(listed(LABELS, own.labels(Query(text="org/name"))))
    assert "your labels count in it, marked as your own" in who_you_are(None, _Visit({COOKIE: "one"}))


def test_models_are_ranked_by_the_bytes_that_they_waste(library: Library) -> None:
    library.add_result(report("org/wasteful", id="1" * 64), public=True)
    order = library.models(Query(sort="wasted", per_page=500)).rows
    assert order[0].model == "org/wasteful" and order[0].wasted and all(row.wasted is None for row in order[1:])
    assert library.counts().wasted == order[0].wasted
    assert "1 stored result in all" in library.counts().sentence
