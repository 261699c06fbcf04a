"""Publishing to a dataset on the local Hub, through the real client, and coming back from it: whatever the Hub does, nothing is lost."""

import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas
import pyarrow
import pytest
from pyarrow import parquet

from analyzers.core import limits
from analyzers.core.errors import AccessDenied, CheckpointNotFound, InvalidRequest, MantissaError
from analyzers.core.report import Report
from components.library import FLAG_REASONS, Identity, Label, Library, Query, contribute
from components.library.dataset_rows import row_of, take, to_parquet
from components.library.schema import Flag
from tests.cases import few
from tests.components.dtype_reports import report
from tests.hub import Fault, LocalHub
from tests.library import DATASET, TOKEN, Bytes

ROOT = Path(__file__).parents[2]
LINK = "https://example.org/paper"
ANN, BOB = Identity.login("ann"), Identity.login("bob")
COMMIT = "/commit/main$"
# The client uploads with an argument that its transport calls outdated.
pytestmark = [pytest.mark.usefixtures("server"), pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")]


@pytest.fixture
def opened(opened: Callable[..., Library]) -> Callable[..., Library]:
    """The same, of libraries without a thread of their own."""
    return partial(opened, background=False)


def dtype(number: int, model: str = "org/name", **changes: Any) -> Report:
    return report(model, id=f"{number:064x}", **changes)


def published(hub: LocalHub, table: str = "labels", dataset: str = DATASET) -> list[str]:
    """The ids in the dataset's files of a table, in no order, as often as they are there."""
    found = []
    for path, content in hub.files(dataset, kind="dataset").items():
        if path.startswith(f"{table}/"):
            for part in take(table, Bytes(path, content)):  # type: ignore[arg-type]
                assert part.refused == 0
                found += [row_of(item)["id"] for item in part.items]
    return found


def test_everything_published_comes_back_on_an_empty_disk(hub: LocalHub, opened: Callable[..., Library]) -> None:
    first = opened("first")
    old = first.add_label("org/name", "fp16", LINK, ANN).item
    label = first.add_label("org/name", "bf16", LINK, ANN).item
    first.add_flag(label.id, FLAG_REASONS[0], BOB, "see the paper")
    first.add_result(dtype(1), "ab" * 32, public=True)
    first.add_result(dtype(2, "sample:tiny-bf16"), public=True)
    assert first.counts().unpublished == 59 + 4
    first.publish()
    assert first.counts().unpublished == 0
    row = first.label(label.id)
    assert row is not None and row.state == "published" and row.commit in hub.commits(DATASET, kind="dataset")

    second = opened("second")
    second.publish()
    kept = {"labels", "current", "contributors", "flags", "quarantined", "unpublished"}  # the sample stays where it was
    assert second.counts().model_dump(include=kept) == first.counts().model_dump(include=kept)
    assert second.counts().results == 1
    assert [row.label for row in second.history("org/name")] == [label, old]
    assert second.flags(label.id) == first.flags(label.id)
    assert second.result(dtype(1).id) == dtype(1).model_dump_json().encode() and second.result(dtype(2).id) is None
    assert [found.state for found in second.find("ab" * 32)] == ["published"]
    commits = len(hub.commits(DATASET, kind="dataset"))
    for library in (first, second):
        library.publish()
    assert len(hub.commits(DATASET, kind="dataset")) == commits


def test_the_files_load_with_pandas_and_the_card_names_them(hub: LocalHub, opened: Callable[..., Library], tmp_path: Path) -> None:
    library = opened("one")
    library.add_label("org/name", "bf16", LINK, ANN)
    library.add_result(dtype(1), public=True)
    library.publish()
    files = hub.files(DATASET, kind="dataset")
    card = files["README.md"].decode()
    assert "config_name: labels\n  data_files: labels/*.parquet" in card and "config_name: results\n  data_files: results/*.parquet" in card
    for path, content in files.items():
        if path.endswith(".parquet"):
            (tmp_path / "loaded" / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "loaded" / path).write_bytes(content)
    labels, results = (pandas.read_parquet(tmp_path / "loaded" / table) for table in ("labels", "results"))
    assert len(labels) == 60 and set(labels["precision"]) >= {"bf16", "fp8-mixed"}
    assert list(results["storage"]) == ["F32"] and results["report"][0] == dtype(1).model_dump_json()


@pytest.mark.parametrize(
    "fault",
    few(
        [
            Fault(COMMIT, times=6, status=412, body=b'{"error": "A commit has happened since"}'),
            Fault(COMMIT, times=2, status=429, headers={"Retry-After": "0"}),
            Fault(COMMIT, times=1, garbage=b""),  # it was committed, and the reply was lost
            Fault(COMMIT, times=1, cut_after=10),
            Fault("/lfs-storage/", times=2, status=503),
            Fault(f"^/api/datasets/{DATASET}$", times=1, skip=1, garbage=b""),
        ],
        {2, 4},
        ["412", "429", "dropped after commit", "cut reply", "storage 503", "lost head"],
    ),
)
def test_a_failing_hub_neither_loses_nor_doubles(
    hub: LocalHub, opened: Callable[..., Library], fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    library = opened("one")
    library.publish()
    labels = [library.add_label(f"org/m{number}", "bf16", LINK, ANN).item.id for number in range(3)]
    hub.fault(fault)
    with caplog.at_level(logging.DEBUG):
        library.publish()
    assert fault.hits > 0
    found = published(hub)
    assert sorted(found) == sorted(set(found)) and set(labels) <= set(found)
    assert library.counts().unpublished == 0 and library.state().problem == ""
    assert TOKEN not in caplog.text


def test_what_does_not_pass_is_said_and_kept(hub: LocalHub, opened: Callable[..., Library]) -> None:
    library = opened("one")
    library.publish()
    label = library.add_label("org/name", "bf16", LINK, ANN).item
    hub.fault(Fault(COMMIT, times=1, status=403, body=b'{"error": "Forbidden"}'))
    with pytest.raises(AccessDenied, match="MANTISSA_TOKEN") as caught:
        library.publish()
    assert TOKEN not in str(caught.value)
    row = library.label(label.id)
    assert row is not None and row.state == "saved here"
    library.publish()
    assert label.id in published(hub)


@pytest.mark.exhaustive
def test_two_servers_publish_to_one_dataset(hub: LocalHub, opened: Callable[..., Library]) -> None:
    servers = [opened(f"server{number}") for number in range(3)]
    mine = [[server.add_label(f"org/m{at}-{each}", "bf16", LINK, ANN).item.id for each in range(4)] for at, server in enumerate(servers)]
    shared = {server.add_label("org/shared", "bf16", LINK, BOB).item.id for server in servers}
    assert len(shared) == 1
    failed: list[MantissaError] = []

    def publish(server: Library) -> None:
        try:
            server.publish()
        except MantissaError as error:
            failed.append(error)

    threads = [threading.Thread(target=publish, args=(server,)) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    for server in servers:
        server.publish()
        assert server.counts().labels == 59 + 12 + 1
    assert set(published(hub)) >= {label for labels in mine for label in labels} | shared
    for server in servers:
        assert server.counts() == servers[0].counts()


def test_a_label_is_published_before_it_is_acknowledged_where_the_disk_does_not_stay(hub: LocalHub, tmp_path: Path) -> None:
    with Library.open(tmp_path / "one", DATASET, token=TOKEN, ephemeral=True) as library:
        saved = library.add_label("org/name", "bf16", LINK, ANN)
        assert saved.state == "published" and saved.commit in hub.commits(DATASET, kind="dataset") and saved.note == ""
        assert saved.item.id in published(hub)
        hub.fault(Fault("^/api/", times=None, status=403))
        late = library.add_label("org/late", "bf16", LINK, ANN)
        assert late.state == "saved here" and late.note.startswith("Saved here, but not published yet")
        assert library.consensus("org/late").precision == "bf16" and TOKEN not in late.note
        hub.clear_faults()
        assert library.add_label("org/later", "bf16", LINK, ANN).state == "published"
        assert late.item.id in published(hub)
    with Library.open(tmp_path / "two", ephemeral=True) as library:
        assert "MANTISSA_DATASET" in library.add_label("org/name", "bf16", LINK, ANN).note


def test_a_hub_that_hangs_does_not_hold_up_a_contributor(hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PUBLISH_WAIT_SECONDS", 0.2)
    with Library.open(tmp_path, DATASET, token=TOKEN, ephemeral=True) as library:
        assert library.wait_restored(100)
        fault = hub.fault(Fault(COMMIT, times=None, delay=60))
        saved = library.add_label("org/name", "bf16", LINK, ANN)
        assert saved.state == "saved here" and "within 0.2 seconds" in saved.note
        fault.delay = 0


def _label(**changes: Any) -> dict[str, Any]:
    made = Label.of(ANN, "org/good", "bf16", LINK, "", created="2026-11-01T00:00:00.000000Z").model_dump()
    return made | changes


def _hostile_labels() -> list[dict[str, Any]]:
    local = Label.of(Identity.local("x"), "org/good", "bf16", LINK, "", created="2026-11-01T00:00:00.000000Z").model_dump()
    return [
        *(_label(contributor="bob"), _label(precision="fp16"), _label(id="x"), _label(id=None), _label(version=2), _label(version=None)),
        *(_label(evidence_link="javascript:alert(1)"), _label(evidence_quote="x" * 1_000_000), _label(evidence_quote="a\u202eb")),
        *(
            _label(created="9999-01-01T00:00:00.000000Z"),
            _label(model="../../etc"),
            _label(provenance="owner"),
            _label(provenance="login "),
        ),
        *(_label(author=True, provenance="local"), local | {"provenance": "login"}, local | {"author": True}),
        *(_label(contributor="<b>"), _label(evidence_link="", evidence_quote=""), _label(replaces="'; DROP TABLE labels; --")),
    ]


def test_hostile_rows_are_put_aside_and_counted(hub: LocalHub, opened: Callable[..., Library]) -> None:
    good, private = dtype(1, "org/good"), dtype(2, "org/private").model_dump_json().replace('"public":true', '"public":false')
    result = {"version": 1, "key": "", "created": "2026-11-01T00:00:00.000000Z", "contributor": ""}
    bad_results = [
        result | {"id": dtype(2).id, "report": private},
        result | {"id": dtype(3).id, "report": dtype(1).model_dump_json()},
        *({**result, "id": dtype(4).id, "report": text} for text in ("", "{}", "[]", "{", "[" * 100_000, "null", '{"id": NaN}', None)),
    ]
    flag = Flag.of(BOB, _label()["id"], FLAG_REASONS[0], "", created="2026-11-01T00:00:00.000000Z").model_dump()
    stranger = pyarrow.table({"id": [1, 2], "something": ["a", "b"]})
    packed = BytesIO()
    parquet.write_table(stranger, packed)
    bomb = BytesIO()
    parquet.write_table(pyarrow.table({"id": pyarrow.array(["x" * 1000]).take(pyarrow.array([0] * 200_000))}), bomb, compression="zstd")
    whole = to_parquet("labels", [_label()])
    hub.add(
        DATASET,
        {
            "labels/good.parquet": whole,
            "labels/hostile.parquet": to_parquet("labels", _hostile_labels()),
            "labels/cut.parquet": whole[:-40],
            "labels/empty.parquet": b"",
            "labels/text.parquet": b"<html>" * 1000,
            "labels/stranger.parquet": packed.getvalue(),
            "labels/bomb.parquet": bomb.getvalue(),
            "flags/flags.parquet": to_parquet("flags", [flag, flag | {"contributor": "carl"}, flag | {"reason": "because"}]),
            "results/results.parquet": to_parquet("results", [result | {"id": good.id, "report": good.model_dump_json()}]),
            "results/hostile.parquet": to_parquet("results", bad_results),
            "labels/notes.txt": b"not ours",
            "photo.png": b"x" * 1000,
        },
        kind="dataset",
    )
    library = opened("one")
    library.publish()
    counts = library.counts()
    assert (counts.labels, counts.flags, counts.results) == (60, 1, 1)
    assert library.result(good.id) == good.model_dump_json().encode()
    assert counts.quarantined >= len(_hostile_labels()) + len(bad_results) + 2 + 5
    assert counts.quarantined == library.state().quarantined
    assert library.labels(Query(text="org/good")).total == 1
    before = hub.totals()["requests"]
    library.publish()
    assert hub.totals()["requests"] - before <= 1  # nothing is read twice
    files = hub.files(DATASET, kind="dataset")
    assert files["labels/hostile.parquet"] and files["photo.png"]


def test_a_file_of_a_hundred_thousand_rows_is_taken_in_parts(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("components.library.dataset_rows._GROUP_ROWS", 3)
    rows = [Label.of(ANN, f"org/m{number}", "bf16", LINK, "", created="2026-11-01T00:00:00.000000Z").model_dump() for number in range(10)]
    parts = list(take("labels", Bytes("labels/x.parquet", to_parquet("labels", rows))))
    assert [len(part.items) for part in parts] == [3, 3, 3, 1]
    monkeypatch.setattr("components.library.dataset_rows.LIBRARY_FILE_ROWS", 4)
    parts = list(take("labels", Bytes("labels/x.parquet", to_parquet("labels", rows))))
    assert [(len(part.items), part.refused) for part in parts] == [(3, 0), (1, 1)]


@pytest.mark.exhaustive
def test_one_long_text_in_many_rows_is_not_held_many_times() -> None:
    """What takes 3 kB in the file would take 4 GB if 64 rows were taken at once."""
    code = """
import io, resource
import pyarrow
from pyarrow import parquet
from components.library.dataset_rows import take
from tests.library import DATASET, TOKEN, Bytes
reports = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 128, pyarrow.int32()), pyarrow.array(["x" * 20_000_000]))
packed = io.BytesIO()
parquet.write_table(pyarrow.table({"report": reports}), packed, compression="zstd")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
parts = list(take("results", Bytes("results/x.parquet", packed.getvalue())))
print(sum(part.refused for part in parts), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    refused, kilobytes = map(int, found.stdout.split())
    assert refused == 128 and kilobytes < 400_000


def test_small_files_are_merged_and_nothing_is_lost(hub: LocalHub, opened: Callable[..., Library], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("components.library.pending_files.LIBRARY_FILES", 2)
    one, two = opened("one"), opened("two")
    for number in range(3):
        for library, who in ((one, ANN), (two, BOB)):
            library.add_label(f"org/m{number}", "bf16", LINK, who)
            library.publish()
    for number in range(3):
        one.add_result(dtype(number, f"org/m{number}"), public=True)
        one.publish()
    files = hub.files(DATASET, kind="dataset")
    assert sum(path.startswith("labels/") for path in files) <= 3 and sum(path.startswith("results/") for path in files) <= 3
    assert len(published(hub)) == len(set(published(hub))) == 65 and len(published(hub, "results")) == 3
    third = opened("third")
    for library in (one, two, third):
        library.publish()
        counts = library.counts()
        assert (counts.labels, counts.results, counts.unpublished, counts.quarantined) == (65, 3, 0, 0)
        assert library.result(dtype(2).id) == dtype(2, "org/m2").model_dump_json().encode()


def test_files_with_strange_rows_are_not_merged(hub: LocalHub, opened: Callable[..., Library], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("components.library.pending_files.LIBRARY_FILES", 2)
    hostile = to_parquet("labels", _hostile_labels())
    hub.add(DATASET, {f"labels/strange-{number}.parquet": hostile for number in range(5)}, kind="dataset")
    library = opened("one")
    library.publish()
    assert sum(path.startswith("labels/strange") for path in hub.files(DATASET, kind="dataset")) == 5


def test_without_a_token_it_is_read_and_not_written(hub: LocalHub, opened: Callable[..., Library]) -> None:
    writer = opened("writer")
    label = writer.add_label("org/name", "bf16", LINK, ANN).item
    writer.publish()
    reader = opened("reader", token=None)
    reader.publish()
    reader.add_label("org/other", "bf16", LINK, BOB)
    reader.publish()
    row = reader.label(label.id)
    assert row is not None and row.state == "published"
    assert "MANTISSA_TOKEN" in reader.state().problem and reader.counts().unpublished == 1
    with pytest.raises(CheckpointNotFound):
        opened("nowhere", dataset="org/nowhere", token=None).publish()


def test_a_contribution_from_a_command_line_is_a_pull_request(hub: LocalHub, opened: Callable[..., Library]) -> None:
    library = opened("one")
    library.publish()
    hub.user("hf_visitor", "visitor")
    address = contribute([dtype(1, "org/new")], dataset=DATASET, token="hf_visitor", keys=["ab" * 32])
    assert address == f"{hub.url}/datasets/{DATASET}/discussions/1"
    library.publish()
    assert library.result(dtype(1).id) is None
    proposed = hub.files(DATASET, revision="refs/pr/1", kind="dataset")
    hub.commit(DATASET, {path: content for path, content in proposed.items() if path.startswith("results/")}, kind="dataset")
    library.publish()
    assert library.result(dtype(1).id) == dtype(1, "org/new").model_dump_json().encode() and library.find("ab" * 32)


def test_what_is_not_public_is_not_contributed(hub: LocalHub) -> None:
    hub.add(DATASET, {"README.md": b"x"}, kind="dataset")
    secret = dtype(1, "org/secret")
    private = secret.model_copy(update={"checkpoint": secret.checkpoint.model_copy(update={"public": False})})  # type: ignore[attr-defined]
    for made in (private, dtype(2, "sample:tiny-bf16")):
        with pytest.raises(InvalidRequest, match="cannot be contributed"):
            contribute([dtype(3), made], dataset=DATASET, token="hf_visitor")
    with pytest.raises(AccessDenied, match="hf auth login"):
        contribute([dtype(3)], dataset=DATASET)
    with pytest.raises(InvalidRequest, match="nothing"):
        contribute([], dataset=DATASET, token="hf_visitor")
    with pytest.raises(AccessDenied):
        contribute([dtype(3)], dataset=DATASET, token="hf_unknown")
    assert hub.commits(DATASET, kind="dataset")[1:] == []


def test_the_token_is_in_no_file_and_no_reply(hub: LocalHub, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), Library.open(tmp_path / "one", DATASET, token=TOKEN, background=False) as library:
        library.add_label("org/name", "bf16", LINK, ANN)
        library.add_result(dtype(1), public=True)
        library.publish()
        hub.fault(Fault("^/api/", times=None, status=401))
        with pytest.raises(MantissaError) as caught:
            library.publish()
        hub.clear_faults()
        said = [str(caught.value), repr(library.state()), repr(library.counts()), repr(vars(library)), repr(library._publisher.__dict__)]
        for kind in ("labels", "results", "models"):
            library.export(tmp_path / "export", kind, "jsonl")
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()] + [*hub.files(DATASET, kind="dataset").values()]
    assert not any(TOKEN.encode() in content for content in kept)
    assert TOKEN not in caplog.text + "".join(said)
    assert any(request.token == TOKEN for request in hub.requests)
    assert all(TOKEN not in request.target for request in hub.requests)


def test_who_is_an_author_is_recomputed_and_never_believed() -> None:
    created = "2026-11-01T00:00:00.000000Z"
    labels = [Label.of(Identity.login("ann", ("org",)), model, "bf16", LINK, "", created=created) for model in ("org/good", "Ann/mine")]
    assert [label.author for label in labels] == [True, True]
    rows = [label.model_dump() | {"author": author} for label in labels for author in (True, False)]
    (part,) = take("labels", Bytes("labels/labels.parquet", to_parquet("labels", rows)))
    assert [label.author for label in part.items] == [False, False, True, True] and not part.refused
