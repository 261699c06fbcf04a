"""What the operator is told of a dataset that cannot be read or written, and what is published at the end, whatever the Hub asked for."""

import re
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from analyzers.core import limits
from analyzers.core.errors import InvalidRequest, LimitExceeded
from components.library import Identity, Label, Library, label_rows
from components.library.dataset_card import MARK
from components.library.item_checks import timestamp
from components.library.schema import HIDE, SHOW
from tests.cases import few
from tests.hub import Fault, LocalHub
from tests.library import DATASET
from tests.library.test_publishing import ANN, BOB, COMMIT, LINK, dtype, published

# The client uploads with an argument that its transport calls outdated.
pytestmark = [pytest.mark.usefixtures("server"), pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")]
WRONG = "hf_" + "wrongWRONG" * 3


@pytest.fixture
def opened(opened: Callable[..., Library]) -> Callable[..., Library]:
    """The same, of libraries on disks that do not stay."""
    return partial(opened, ephemeral=True)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until ``condition`` holds. Fails after 100 seconds, with the stacks of all threads: the cause may be in another one."""
    waited = threading.Event()
    end = time.monotonic() + 100
    while not condition() and time.monotonic() < end:
        waited.wait(0.02)
    if not condition():
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        stacks = ("".join([f"\n{names.get(ident)}\n", *traceback.format_stack(frame)]) for ident, frame in sys._current_frames().items())
        pytest.fail("".join(stacks), pytrace=False)


def test_the_end_does_not_wait_for_what_the_hub_asked_for(
    hub: LocalHub, opened: Callable[..., Library], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PUBLISH_WAIT_SECONDS", 0.05)
    monkeypatch.setattr("components.library.publisher._FIRST_WAIT", 3000)
    library = opened("one")
    publisher = library._publisher
    assert publisher is not None
    wait_until(lambda: library.counts().unpublished == 0 and not publisher._turning.locked())  # of the initial labels
    fault = hub.fault(Fault(COMMIT, times=None, status=429, headers={"Retry-After": "86400"}))
    saved = library.add_label("org/name", "bf16", LINK, ANN)
    assert saved.state == "saved here"
    wait_until(lambda: fault.hits > 0)
    hub.clear_faults()
    ending = threading.Thread(target=library.publish_last, daemon=True)  # as the app does
    ending.start()
    ending.join(100)
    assert saved.item.id in published(hub)


def test_the_end_publishes_before_it_has_read_the_dataset(
    hub: LocalHub, opened: Callable[..., Library], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened("writer", background=False).publish()
    monkeypatch.setattr(limits, "PUBLISH_WAIT_SECONDS", 0.1)
    fault = hub.fault(Fault("/resolve/", times=1, delay=60))
    library = opened("one")
    saved = library.add_label("org/name", "bf16", LINK, ANN)
    assert not library.state().restored and saved.state == "saved here"
    library.publish_last()
    fault.delay = 0
    assert saved.item.id in published(hub)


def test_a_contributor_is_told_what_the_hub_answered(
    hub: LocalHub, opened: Callable[..., Library], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("components.library.publisher._FIRST_WAIT", 3000)
    hub.fault(Fault(COMMIT, times=None, status=401))
    library = opened("one")
    wait_until(lambda: library.state().problem != "")
    monkeypatch.setattr(limits, "PUBLISH_WAIT_SECONDS", 10)
    note = library.add_label("org/name", "bf16", LINK, ANN).note
    assert "MANTISSA_TOKEN" in note and "your login" not in note


@pytest.mark.parametrize("may", few([None, []], {1}, ["unknown", "may not write"]))
def test_a_token_that_may_not_write_is_known_at_the_start(hub: LocalHub, opened: Callable[..., Library], may: list[str] | None) -> None:
    first = opened("writer", background=False)
    label = first.add_label("org/name", "bf16", LINK, ANN).item
    if may is not None:
        hub.user(WRONG, "visitor", writes=may)
    commits = hub.commits(DATASET, kind="dataset")
    library = opened("one", token=WRONG)
    assert library.wait_restored(100)  # what everybody may read is restored
    wait_until(lambda: library.state().problem != "")
    said = library.state().problem
    assert f"The Hub refuses to write the dataset {DATASET}: check that the token (MANTISSA_TOKEN or HF_TOKEN)" in said
    assert "your login" not in said and WRONG not in said
    row = library.label(label.id)
    assert row is not None and row.state == "published" and library.counts().unpublished == 0
    assert hub.commits(DATASET, kind="dataset") == commits


@pytest.mark.parametrize("status", few([403, 404, 412, 429], {0, 3}))
def test_a_dataset_that_cannot_be_read_is_the_operators(
    hub: LocalHub, opened: Callable[..., Library], monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    opened("writer", background=False).publish()
    monkeypatch.setattr(limits, "HUB_WAIT_SECONDS", 0.1)
    monkeypatch.setattr("components.library.publisher.LIBRARY_ATTEMPTS", 1)
    hub.fault(Fault("/(api/datasets|resolve)/", times=None, status=status))
    library = opened("one", background=False)
    note = library.add_label("org/name", "bf16", LINK, ANN).note
    assert DATASET in note and ("MANTISSA_DATASET" in note or "MANTISSA_TOKEN" in note)
    assert not re.search("your (own )?(login|token)|check the name|try again", note)


def test_a_name_that_is_no_dataset_names_its_variable(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="MANTISSA_DATASET is 'not a name'"):
        Library.open(tmp_path, "not a name")


@pytest.mark.parametrize("gone", few(["deleted", "emptied", "deleted before the end"], {2}))
def test_what_a_dataset_lost_is_published_again(hub: LocalHub, opened: Callable[..., Library], gone: str) -> None:
    library = opened("one", background=False)
    early = library.add_label("org/early", "bf16", LINK, ANN)
    assert early.state == "published"
    files = hub.files(DATASET, kind="dataset")
    if gone == "emptied":
        hub.commit(DATASET, {}, remove=files, kind="dataset")
    else:
        hub.remove(DATASET, kind="dataset")
    if gone == "deleted before the end":
        with library._database.write() as connection:
            label_rows.take_labels(connection, [Label.of(ANN, "org/late", "bf16", LINK, "", created=timestamp(datetime.now(UTC)))], "")
        library.publish_last()
    else:
        assert library.add_label("org/late", "bf16", LINK, ANN).state == "published"
    assert library.counts().unpublished == 0
    other = opened("empty disk", background=False)
    other.publish()
    assert other.counts().labels == library.counts().labels == 61 and other.consensus("org/early").precision == "bf16"
    assert sorted(published(hub)) == sorted(set(published(hub)))


def test_the_card_is_kept_current_unless_it_is_somebodys_own(hub: LocalHub, opened: Callable[..., Library]) -> None:
    def card() -> str:
        return hub.files(DATASET, kind="dataset")["README.md"].decode()

    library = opened("one", background=False)
    library.publish()
    first = card()
    assert "of 59 models" in first and "no stored results yet" in first and "| gsarti/it5-base-oscar | fp32 |" in first
    library.add_result(dtype(1), public=True)
    library.publish()
    assert "1 stored result in all" in card() and "cc-by-4.0" in card() and MARK in card()
    commits = len(hub.commits(DATASET, kind="dataset"))
    library.publish()
    assert len(hub.commits(DATASET, kind="dataset")) == commits  # the card alone is no reason for a commit
    mine = card().replace(MARK, "") + "my own words"
    hub.commit(DATASET, {"README.md": mine.encode()}, kind="dataset")
    library.add_result(dtype(2), public=True)
    library.publish()
    assert card() == mine


def test_labels_of_a_clock_that_was_ahead_do_not_count_and_the_wait_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("components.library.label_rows.LABELS_PER_HOUR", 3)
    monkeypatch.setattr(limits, "LABELS_PER_ADDRESS", 2)
    now = datetime.now(UTC)
    with Library.open(tmp_path) as library:
        with library._database.write() as connection:
            for number, hours in enumerate((20, 20, 20, -0.5, -0.25)):
                made = Label.of(ANN, f"org/old{number}", "bf16", LINK, "", created=timestamp(now + timedelta(hours=hours)))
                label_rows.take_labels(connection, [made], "")
        library.add_label("org/m1", "bf16", LINK, ANN)
        with pytest.raises(LimitExceeded, match=r"within an hour: continue in 30 minutes\.$"):
            library.add_label("org/m2", "bf16", LINK, ANN)
        visitors = [library.local_identity(f"browser {number}", "an address") for number in range(3)]
        for number, visitor in enumerate(visitors[:2]):
            library.add_label(f"org/m{number}", "bf16", LINK, visitor)
        with pytest.raises(LimitExceeded, match=r"MANTISSA_LABELS_PER_ADDRESS\): continue in 60 minutes, or log in\.$"):
            library.add_label("org/m2", "bf16", LINK, visitors[2])


def test_a_hidden_label_stays_hidden_whatever_its_evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MANTISSA_MODERATORS", "mod")
    moderator = Identity.login("mod")
    with Library.open(tmp_path) as library:
        label = library.add_label("org/name", "bf16", LINK, ANN, quote="as said").item
        library.add_flag(label.id, HIDE, moderator)
        quoted = ("the paper", "We trained it in bfloat16.")
        for link, quote in ((LINK, "as said"), (LINK, "as said again"), ("https://example.org/other", ""), quoted):
            with pytest.raises(InvalidRequest, match="stays hidden"):
                library.add_label("org/Name", "bf16", link, ANN, quote=quote)
        assert library.consensus("org/name").labels == () and len(library.history("org/name")) == 1
        assert library.add_label("org/name", "fp16", LINK, ANN).item.precision == "fp16"  # what is corrected is another label
        with pytest.raises(InvalidRequest, match="stays hidden"):
            library.add_label("org/name", "bf16", LINK, ANN)
        library.add_flag(label.id, SHOW, moderator)
        assert library.add_label("org/name", "bf16", LINK, ANN, quote="as said").item.precision == "bf16"
        library.add_label("org/name", "bf16", LINK, BOB)
