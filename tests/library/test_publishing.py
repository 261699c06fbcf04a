"""The dataset on the Hub: what is added is in it once, however the Hub fails, and a new folder is restored from it."""

import gzip
import json
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from analyzers.core import limits
from analyzers.core.errors import AccessDenied, HubError, LibraryUnavailable
from components.library import Identity, Label, Library, Saved
from components.library.folder import report_path
from tests.hub import Fault, LocalHub
from tests.library import DATASET, LINK, TOKEN
from tests.library.reports import report
from tests.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # of huggingface_hub's own upload
ANN, BOB = Identity.login("ann"), Identity.login("bob", ("org",))
Opened = Callable[..., Library]


def files(hub: LocalHub) -> dict[str, bytes]:
    return {path: bytes(content) for path, content in hub.files(DATASET, kind="dataset").items()}


def rows(hub: LocalHub) -> list[Any]:
    return [json.loads(line) for path, content in files(hub).items() if path.startswith("results/") for line in content.splitlines()]


def test_a_label_is_committed_before_it_is_acknowledged(server: LocalHub, opened: Opened) -> None:
    saved = opened("a").add_label("org/name", "bf16", LINK, BOB)
    assert (saved.where, saved.note, saved.item.author) == ("published", "", True)
    content = files(server)
    assert saved.commit == server.commits(DATASET, kind="dataset")[-1]
    assert Label.model_validate_json(content[f"labels/{saved.item.id}.json"]) == saved.item
    assert b"config_name: labels" in content["README.md"] and TOKEN.encode() not in b"".join(content.values())
    assert opened("b").wait_restored(60) and opened("c", token=None).wait_restored(60)


def test_another_folder_is_restored(server: LocalHub, opened: Opened) -> None:
    first = opened("a", background=False)
    first.publish()
    for number in range(3):
        first.add_result(report(f"org/name{number}", id=f"{number:064x}"), f"{number:064x}", public=True)
    first.add_result(report("org/private", id="e" * 64), public=False)
    first.publish()
    label = opened("b").add_label("org/name1", "fp16", LINK, ANN).item
    first.publish()
    assert first.labels_of("org/name1") == () and first._publisher is not None
    first._publisher._read_at = float("-inf")
    first.publish()
    assert first.labels_of("org/name1") == (label,)
    second = opened("c")
    assert second.wait_restored(60) and second.state().backlog == 0
    row = second.find(f"{1:064x}")[0]
    assert row == first.find(f"{1:064x}")[0] and second.result(row.id) == first.result(row.id) is not None
    assert second.model("org/name1") == first.model("org/name1") and second.counts() == first.counts()
    server.fault(Fault("reports", status=500, times=None))
    assert second.result(row.id) == first.result(row.id), "a copy was kept"
    assert second.result(f"{2:064x}") is None
    assert len(rows(server)) == 3 and "org/private" not in str(rows(server))


@pytest.mark.parametrize("fault", [Fault("commit/main", status=503), Fault("commit/main", cut_after=0), Fault("commit/main", status=412)])
def test_a_failing_commit_is_tried_again(server: LocalHub, opened: Opened, fault: Fault) -> None:
    """Also one that was made although its answer was lost: it is read before the next try."""
    server.fault(fault)
    library = opened("a")
    saved = library.add_label("org/name", "bf16", LINK, ANN)
    assert saved.where == "published" and library.state().backlog == 0
    assert [path for path in files(server) if path.startswith("labels/")] == [f"labels/{saved.item.id}.json"]


def test_an_unreachable_hub_is_said_and_the_label_follows(server: LocalHub, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PUBLISH_WAIT_SECONDS", 0.3)
    library = opened("a")
    assert library.wait_restored(60)
    server.fault(Fault("commit/main", hang=True, times=1))
    saved = library.add_label("org/name", "bf16", LINK, ANN)
    assert saved.where == "saved here" and "It will be published later" in saved.note
    assert library.labels_of("org/name") == (saved.item,) and library.state().backlog == 1
    library.close()
    again = opened("a")
    wait_until(lambda: again.state().backlog == 0)
    assert f"labels/{saved.item.id}.json" in files(server)


def test_a_refused_token_is_said_at_once(hub: LocalHub, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PUBLISH_WAIT_SECONDS", 1000)
    hub.add(DATASET, {}, kind="dataset")
    hub.user(TOKEN, "reader")
    library = opened("a")
    saved = library.add_label("org/name", "bf16", LINK, ANN)
    assert saved.where == "saved here" and "check that the token" in saved.note
    wait_until(lambda: "check that the token" in library.state().problem)
    assert library.state().backlog == 1 and TOKEN not in library.state().problem + saved.note
    reader = opened("b", token=None, background=False)
    with pytest.raises(AccessDenied, match="set MANTISSA_TOKEN"):
        reader.publish()
    assert reader.state().restored


def test_moderation_is_a_commit(server: LocalHub, opened: Opened) -> None:
    library = opened("a", background=False)
    library.publish()
    first, second = (save(library, who) for who in (ANN, BOB))
    library.add_result(report("org/name", id="a" * 64), "b" * 64, public=True)
    library.publish()
    server.commit(DATASET, {f"hidden/{first.item.id}": b"spam", f"hidden/{'a' * 64}": b""}, kind="dataset")
    again(library)
    assert library.labels_of("org/name") == (second.item,) and library.labels_of("org/name", replaced=True) == (first.item,)
    assert library.result("a" * 64) is None and library.find("b" * 64) == () and library.counts().results == 0
    server.commit(DATASET, {}, remove=[f"hidden/{first.item.id}", f"labels/{second.item.id}.json"], kind="dataset")
    again(library)
    assert library.labels_of("org/name") == (first.item,), "a label that was deleted in the dataset does not return"
    again(library)
    assert f"labels/{second.item.id}.json" not in files(server)


def save(library: Library, who: Identity) -> Saved:
    """Add a label that waits for `again`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "PUBLISH_WAIT_SECONDS", 0)
        return library.add_label("org/name", "bf16", LINK, who)


def again(library: Library) -> None:
    """Publish, and read the dataset although that is not due."""
    assert library._publisher is not None
    library._publisher._read_at = float("-inf")
    library.publish()


def test_items_of_the_dataset_are_untrusted(server: LocalHub, opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    label = Label.of(ANN, "org/name", "bf16", LINK, "")
    owner = Label.of(Identity.local(), "org/name", "fp16", LINK, "")
    with opened("local", dataset="") as local:
        local.add_result(report("org/good", id="a" * 64), public=True)
        row, text = local.result_row("a" * 64), local.result("a" * 64)
    assert row is not None and text is not None
    line = row.model_dump_json()
    lines = [line, line.replace("org/good", "../../etc"), "[" * 10_000, "{}", line.replace('"version":1', '"version":2'), line[:50]]
    changed = label.model_dump(mode="json") | {"id": "2" * 64, "model": "org/other"}
    bad = {
        f"labels/{'1' * 64}.json": b"not json",
        f"labels/{'2' * 64}.json": json.dumps(changed).encode(),
        f"labels/{'3' * 64}.json": b'{"x": "' + b"x" * 100_000 + b'"}',
        f"labels/{owner.id}.json": owner.model_dump_json().encode(),
        "labels/../escape.json": b"x",
        "labels/sub/x.json": b"x",
        "results/.hidden.jsonl": b"x",
        "secret/x": b"x",
    }
    good = {f"labels/{label.id}.json": label.model_dump_json().encode(), "results/other.jsonl": "\n".join(lines).encode()}
    server.add(DATASET, bad | good, kind="dataset")
    library = opened("a", background=False)
    library.publish()
    assert (
        library.labels_of("org/name") == (label,)
        and library.labels_of("org/other") == ()
        and [each.id for each in library.results()] == ["a" * 64]
    )
    assert "are not valid, and are ignored" in caplog.text
    assert library.result("a" * 64) is None
    other = json.dumps(json.loads(text) | {"id": "b" * 64}).encode()
    bomb = gzip.compress(b" " * (limits.RESULT_BYTES + 1))
    token = gzip.compress(text.replace(b'"notes"', b'"hf_%s":1,"notes"' % (b"a" * 34)))
    for content in (b"x", gzip.compress(other), bomb, token, gzip.compress(text) + b"more", gzip.compress(text)[:-9]):
        server.commit(DATASET, {report_path("a" * 64): content}, kind="dataset")
        assert library.result("a" * 64) is None
    server.commit(DATASET, {report_path("a" * 64): gzip.compress(text)}, kind="dataset")
    assert library.result("a" * 64) == text


def test_the_owner_of_an_app_with_a_dataset_labels_as_the_owner_of_its_token(server: LocalHub, opened: Opened) -> None:
    saved = opened("a").add_label("org/name", "bf16", LINK, Identity.local())
    assert (saved.where, saved.item.contributor) == ("published", "server")
    alone = opened("b", dataset="").add_label("org/name", "bf16", LINK, Identity.local())
    assert (alone.where, alone.item.contributor) == ("saved here", "local:owner")


def test_what_was_added_without_a_dataset_follows_when_there_is_one(server: LocalHub, opened: Opened) -> None:
    with opened("a", dataset="") as alone:
        alone.add_result(report("org/name", id="a" * 64), public=True)
        label = alone.add_label("org/name", "bf16", LINK, ANN).item
        mine = alone.add_label("org/name", "fp16", LINK, Identity.local()).item
    library = opened("a", background=False)
    library.publish()
    assert f"labels/{label.id}.json" in files(server) and len(rows(server)) == 1
    assert f"labels/{mine.id}.json" not in files(server) and mine in library.labels_of("org/name")
    assert library.state().backlog == 0


def test_closing_does_not_wait_for_a_hub_that_hangs(server: LocalHub, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("components.library.library._CLOSING_SECONDS", 0.2)
    library = opened("a")
    server.fault(Fault(".", hang=True, times=None))
    library.add_result(report("org/name", id="a" * 64), public=True)
    library.close()
    assert any(thread.name == "library" for thread in threading.enumerate()), "it is still waiting"
    with pytest.raises(LibraryUnavailable, match="closed"):
        library.counts()


def test_two_writers_lose_nothing(server: LocalHub, opened: Opened) -> None:
    """Each commit is made on the parent that was read, and each folder writes rows to files of its own."""
    libraries = [opened(name, background=False) for name in "ab"]
    for number in range(6):
        libraries[number % 2].add_result(report("org/name", id=f"{number:064x}"), public=True)
        libraries[number % 2].publish()
    assert sorted(row["id"] for row in rows(server)) == [f"{number:064x}" for number in range(6)]
    assert sum(path.startswith("results/") for path in files(server)) == 2


@pytest.mark.parametrize("commits", [True, False])
def test_an_interrupted_publication_is_repeated_once(
    server: LocalHub, opened: Opened, monkeypatch: pytest.MonkeyPatch, commits: bool
) -> None:
    """The process ends after the commit, or before it."""
    library = opened("a", background=False)
    for number in range(3):
        library.add_result(report("org/name", id=f"{number:064x}"), public=True)
    save(library, ANN)

    def end(*_: object) -> None:
        raise HubError("ended")

    with monkeypatch.context() as patch:
        patch.setattr(library._folder, "settle", end)
        if not commits:
            server.fault(Fault("commit/main", status=500))
        with pytest.raises(HubError):
            library.publish()
    library.close()
    for _ in range(2):
        restarted = opened("a", background=False)
        restarted.publish()
        assert restarted.state().backlog == 0 and restarted.counts().results == 3
        restarted.close()
    assert len(rows(server)) == 3 and sum(path.startswith("labels/") for path in files(server)) == 1
    assert len([each for each in (restarted._folder.path / "published").rglob("*") if each.is_file()]) == 5
    assert os.environ.get("HF_TOKEN") is None
