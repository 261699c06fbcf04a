"""The store on disk: what is added is there once, what is not public is nowhere, and lists say what a plain loop would say."""

import csv
import json
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas
import pytest

from analyzers.core import limits
from analyzers.core.errors import InvalidRequest, LibraryUnavailable, LimitExceeded, MantissaError
from analyzers.core.report import Report
from analyzers.dtype_detection.labelled_models import examples
from components.library import DECISIONS, FLAG_REASONS, Flag, Identity, Label, Library, Query, database, label_rows, open_library
from components.library.database import mount_kind
from components.library.initial_labels import SEED
from components.library.item_checks import now
from components.library.schema import HIDE, SHOW
from components.library.storable_reports import storable_result
from tests.components.dtype_reports import report

ANN, BOB = Identity.login("ann"), Identity.login("bob", ("org",))
LINK = "https://example.org/paper"
FORMULA = '=HYPERLINK("http://evil/trained/in/bf16") is in section 3'
OUR_LOG = '"precision: 16-mixed" (our own log of the run)'


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Library]:
    with Library.open(tmp_path / "data") as opened:
        yield opened


def dtype(number: int, model: str = "org/name", **changes: Any) -> Report:
    """A report with an id of its own."""
    return report(model, id=f"{number:064x}", **changes)


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def on_disk(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_it_begins_with_the_documented_models(library: Library) -> None:
    assert library.counts().labels == library.counts().models == 59
    found = library.consensus("facebook/OPT-13b")
    assert (found.precision, found.sentence) == ("fp16-mixed", "labelled fp16-mixed by 1 contributor")
    assert found.evidence == "https://arxiv.org/abs/2205.01068" and found.labels[0].label.provenance == "seed"
    row = library.model("FACEBOOK/opt-13B")
    assert row is not None and (row.model, row.precision, row.labels, row.results) == ("facebook/opt-13b", "fp16-mixed", 1, 0)


def test_the_initial_labels_of_an_older_program_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older = Label.of(SEED, "facebook/opt-13b", "fp16", "", "arXiv", created="2026-11-20T00:00:00.000000Z")
    with monkeypatch.context() as before:
        before.setattr("components.library.library.seed_labels", lambda: [older])
        before.setattr("components.library.library.GATHERED", older.created)
        with Library.open(tmp_path) as library:
            assert library.consensus("facebook/opt-13b").precision == "fp16"
    for _ in range(2):
        with Library.open(tmp_path) as library:
            assert (library.counts().labels, library.counts().current) == (60, 59)
            assert library.consensus("facebook/opt-13b").precision == "fp16-mixed"


def test_the_same_label_again_is_the_one_that_is_there(library: Library) -> None:
    first = library.add_label("org/name", "bf16", LINK, ANN)
    assert (first.state, first.commit, first.note) == ("saved here", "", "")
    assert library.add_label("org/name", "bf16", LINK, ANN).item == first.item
    assert library.counts().labels == 60


def test_a_later_label_replaces_the_former_and_history_stays(library: Library) -> None:
    said = [library.add_label("org/name", precision, LINK, ANN).item for precision in ("bf16", "fp16", "bf16")]
    assert [label.replaces for label in said] == ["", said[0].id, said[1].id]
    assert [(row.label.id, row.current) for row in library.history("Org/Name")] == [
        (said[2].id, True),
        (said[1].id, False),
        (said[0].id, False),
    ]
    found = library.consensus("org/name")
    assert found.precision == "bf16" and len(found.labels) == 1
    assert library.labels(Query(model="org/name")).total == 1 and library.labels(Query(model="org/name", current=False)).total == 3


def test_disagreement_is_shown_and_authors_are_marked(library: Library) -> None:
    library.add_label("org/name", "bf16", LINK, ANN)
    library.add_label("org/name", "fp16-mixed", OUR_LOG, BOB)
    found = library.consensus("org/name")
    assert found.disputed and found.precision == "fp16-mixed" and found.evidence == OUR_LOG
    assert [(vote.precision, vote.contributors, vote.authors) for vote in found.votes] == [("fp16-mixed", 1, 1), ("bf16", 1, 0)]
    assert {row.label.model for row in library.labels(Query(disputed=True)).rows} == {"org/name"}
    assert [row.model for row in library.models(Query(disputed=True)).rows] == ["org/name"]


def test_evidence_is_a_link_or_a_quote(library: Library) -> None:
    link = library.add_label("org/a", "bf16", " HTTPS://example.org/P ", ANN, quote="we used\nbf16").item
    assert (link.evidence_link, link.evidence_quote) == ("https://example.org/P", "we used bf16")
    for given in (
        ("section 3", "We trained in bf16."),
        ("“We trained in bf16.” (section 3)", ""),
        ("", "“We trained in bf16.” (section 3)"),
    ):
        quoted = library.add_label("org/b", "bf16", given[0], ANN, quote=given[1]).item
        assert (quoted.evidence_link, quoted.evidence_quote) == ("", "“We trained in bf16.” (section 3)")
    assert library.add_label("org/b", "bf16", "论文第三节", ANN, quote="所有模型均使用bf16混合精度训练。").item.evidence_quote


def test_a_label_without_a_login_is_a_proposal_until_a_login_adds_the_same(tmp_path: Path) -> None:
    visitor = Identity.local("visitor")
    with Library.open(tmp_path) as library:
        saved = library.add_label("org/name", "bf16", LINK, visitor)
        found, row = library.consensus("org/name"), library.model("org/name")
        assert saved.proposal and (found.precision, found.votes, found.evidence, found.proposed) == (None, (), "", ("bf16",))
        assert row is not None and (row.precision, row.proposed, row.evidence, row.labels) == ("", "bf16", "", 1)
        assert [each.proposal for each in library.history("org/name")] == [True] and library.counts().proposals == 1
        exported = pandas.read_parquet(library.export(tmp_path, "labels", "parquet"))
        assert exported[exported.proposal].model.tolist() == ["org/name"]
        library.add_result(dtype(1, mode="exact", request=report().request.model_copy(update={"mode": "exact"})), public=True)
        training = library.export(tmp_path, "training", "csv")
        assert "org/name" not in training.read_text(encoding="utf-8")
        library.add_label("org/name", "bf16", LINK, ANN)
        library.add_label("facebook/opt-13b", "bf16", LINK, visitor)  # the reference says fp16
        found, row = library.consensus("org/name"), library.model("facebook/opt-13b")
        assert (found.precision, found.contributors, found.own, found.disputed) == ("bf16", 1, False, False)
        assert row is not None and (row.precision, row.proposed, row.disputed) == ("fp16-mixed", "bf16", False)
        assert "org/name" in library.export(tmp_path, "training", "csv").read_text(encoding="utf-8")


def test_an_app_of_ones_own_takes_its_visitor_at_their_word(tmp_path: Path) -> None:
    visitor = Identity.local("visitor")
    for options, precision in (({"own": True}, "bf16"), ({}, None), ({"own": True, "dataset": "org/set", "background": False}, None)):
        with Library.open(tmp_path, **options) as library:
            saved = library.add_label("org/name", "bf16", LINK, visitor)
            found, row = library.consensus("org/name"), library.model("org/name")
            assert (found.precision, found.own, saved.proposal) == (precision, bool(precision), not precision)
            assert row is not None and (row.precision, row.own) == (precision or "", bool(precision))
    with Library.open(tmp_path, own=True) as library:
        with library._database.write() as connection:
            label_rows.take_labels(connection, [saved.item], "a commit")  # what a dataset has may be anybody's
        assert library.consensus("org/name").precision is None


@pytest.mark.parametrize(
    ("settings", "own"),
    [
        *(({}, True), ({"GRADIO_SERVER_NAME": "localhost"}, True), ({"GRADIO_SERVER_NAME": "[::1]", "FORWARDED_ALLOW_IPS": ""}, True)),
        *(({"GRADIO_SERVER_NAME": "0.0.0.0"}, False), ({"GRADIO_SERVER_NAME": ""}, False), ({"SPACE_ID": "org/app"}, False)),
        *(({"FORWARDED_ALLOW_IPS": "127.0.0.1"}, False), ({"GRADIO_ROOT_PATH": "/mantissa"}, False)),
    ],
)
def test_only_an_app_that_serves_nobody_else_is_ones_own(
    settings: dict[str, str], own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unset = ("GRADIO_SERVER_NAME", "FORWARDED_ALLOW_IPS", "GRADIO_ROOT_PATH", "SPACE_ID", "MANTISSA_DATASET")
    for name, value in {**dict.fromkeys(unset), "MANTISSA_DATA": str(tmp_path), **settings}.items():
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    with open_library() as library:
        assert library.state().own is own
        for name in unset:
            monkeypatch.delenv(name, raising=False)
        open_library(background=False).close()  # a command beside the app
        assert library.state().own is own


def test_flags_hide_a_label(library: Library) -> None:
    label = library.add_label("org/name", "bf16", LINK, ANN).item
    for number in range(limits.FLAGS):
        assert library.consensus("org/name").precision == "bf16"
        library.add_flag(label.id, FLAG_REASONS[0], Identity.local(f"{number}"))  # anybody can be many of these
        for _ in range(2):
            library.add_flag(label.id, FLAG_REASONS[0], Identity.login(f"user{number}"), "see\u202e the paper")
    found = library.consensus("org/name")
    assert found.precision is None and found.labels == () and library.labels(Query(model="org/name")).total == 0
    assert [(row.current, row.flags) for row in library.history("org/name")] == [(False, limits.FLAGS)]
    assert len(library.flags(label.id)) == 2 * limits.FLAGS and library.flags(label.id)[1].text == "see<U+202E> the paper"
    with pytest.raises(InvalidRequest):
        library.add_flag("0" * 64, FLAG_REASONS[0], ANN)
    with pytest.raises(InvalidRequest):
        library.add_flag(label.id, "because", ANN)


def test_moderators_decide_whether_a_label_is_shown_as_often_as_needed(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MANTISSA_MODERATORS", "mod, Bob")
    label = library.add_label("org/name", "bf16", LINK, ANN).item
    for number in range(limits.FLAGS):
        library.add_flag(label.id, FLAG_REASONS[0], Identity.login(f"user{number}"))
    for who in (ANN, Identity.local("mod")):
        with pytest.raises(InvalidRequest, match="Only moderators"):
            library.add_flag(label.id, SHOW, who)
    for who, decision, precision in ((BOB, SHOW, "bf16"), (BOB, HIDE, None), (Identity.login("mod"), SHOW, "bf16")):
        library.add_flag(label.id, decision, who, "see the paper")
        library.add_flag(label.id, FLAG_REASONS[0], Identity.login(f"late{decision[:4]}{who.name}"))
        assert library.consensus("org/name").precision == precision
    log = [(flag.contributor, flag.reason) for flag in library.flags(label.id) if flag.reason in DECISIONS]
    assert log == [(BOB.name, SHOW), (BOB.name, HIDE), ("mod", SHOW)]


def test_a_decision_in_the_dataset_counts_only_if_its_contributor_moderates_here(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    label = library.add_label("org/name", "bf16", LINK, ANN).item
    decision = Flag.of(BOB, label.id, HIDE, "", created="2026-11-01T00:00:00.000000Z")
    for moderators, precision in (("", "bf16"), ("bob", None)):
        monkeypatch.setenv("MANTISSA_MODERATORS", moderators)
        with library._database.write() as connection:
            connection.execute("DELETE FROM flags")
            label_rows.take_flags(connection, [decision], "commit")
        assert library.consensus("org/name").precision == precision


def test_contributors_have_an_hourly_limit(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("components.library.label_rows.LABELS_PER_HOUR", 3)
    for who in (ANN, BOB):
        for number in range(3):
            library.add_label(f"org/m{number}", "bf16", LINK, who)
        with pytest.raises(LimitExceeded, match="3 labels and flags were added within an hour"):
            library.add_label("org/m3", "bf16", LINK, who)
        library.add_label("org/m0", "bf16", LINK, who)  # what is there already is no addition
    for number in range(3):
        library.add_label(f"org/m{number}", "bf16", LINK, library.local_identity(f"browser {number}"))
    with pytest.raises(LimitExceeded):
        library.add_label("org/m3", "bf16", LINK, library.local_identity("another browser"))


def test_an_address_without_a_login_has_an_hourly_limit_below_that_of_all(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LABELS_PER_ADDRESS", 2)
    for number in range(2):
        library.add_label(f"org/m{number}", "bf16", LINK, library.local_identity(f"browser {number}", "address 1"))
    library.add_label("org/m0", "bf16", LINK, library.local_identity("browser 0", "address 1"))  # what is there already is no addition
    with pytest.raises(LimitExceeded, match="MANTISSA_LABELS_PER_ADDRESS"):
        library.add_label("org/m2", "bf16", LINK, library.local_identity("a new cookie", "address 1"))
    label = library.add_label("org/m2", "bf16", LINK, library.local_identity("browser 2", "address 2"))
    assert "address" not in label.item.model_dump_json()


def test_those_without_a_login_are_told_apart_by_a_secret_that_is_not_kept(library: Library, tmp_path: Path) -> None:
    first, second = (library.local_identity(f"secret-{number}") for number in (1, 2))
    assert first != second and library.local_identity("secret-1") == first
    with Library.open(tmp_path / "other") as other:
        assert other.local_identity("secret-1") != first
    library.add_label("org/name", "bf16", LINK, first)
    assert b"secret-1" not in on_disk(tmp_path)


def test_a_stored_result_shows_every_character(library: Library) -> None:
    """Also to whoever prints it: what is invisible or controls a terminal is escaped, and the report is the same."""
    made = dtype(7, config_dtype="a\x9b31m\u202e\u3164\U000e0041 ж##[error]b")
    assert library.add_result(made, public=True) is not None
    text = (library.result(made.id) or b"").decode()
    assert text.isprintable() and "\u3164" not in text and "##[" not in text and "ж" in text
    assert type(made).model_validate_json(text) == made


def test_a_result_is_served_byte_for_byte(library: Library) -> None:
    made = dtype(7, timing={"seconds": 0.1, "reading_seconds": 1e-7, "bytes_per_second": 1.2345678901234567e9})
    saved = library.add_result(made, "ab" * 32, public=True)
    assert saved is not None and saved.item.passed_through == "bf16" and saved.item.storage == "F32"
    assert library.result(made.id) == made.model_dump_json().encode()
    again = dtype(7, timing={"seconds": 9.0, "reading_seconds": 9.0, "bytes_per_second": None})
    assert library.add_result(again, "ab" * 32, public=True) is not None
    assert library.result(made.id) == made.model_dump_json().encode()
    assert [row.result for row in library.find("ab" * 32)] == [saved.item]
    assert library.find("cd" * 32) == library.find("") == ()
    model = library.model("ORG/NAME")
    assert model is not None and (model.result, model.trained_in, model.results) == (made.id, saved.item.trained_in, 1)


def _changed(made: Report, **facts: Any) -> Report:
    return made.model_copy(update={"checkpoint": made.checkpoint.model_copy(update=facts)})  # type: ignore[attr-defined]


def test_what_is_not_public_leaves_nothing(library: Library, tmp_path: Path) -> None:
    name = "org/very-secret"
    refused: list[tuple[Report, bool]] = [
        (dtype(1, name), False),
        (_changed(dtype(2, name), public=False), True),
        (_changed(dtype(3, name), ref="/srv/very-secret"), True),
        (_changed(dtype(4, name), ref="./very-secret"), True),
        (_changed(dtype(5, name), ref="datasets/org/very-secret"), True),
        (dtype(6, name, config_dtype="hf_" + "canary" * 5), True),
    ]
    before = library.counts()
    for made, public in refused:
        assert library.add_result(made, "ab" * 32, public=public) is None
        assert library.result(made.id) is None
    assert library.counts() == before and library.model(name) is None
    assert b"very-secret" not in on_disk(tmp_path) and b"canary" not in on_disk(tmp_path)


@pytest.mark.parametrize(
    ("given", "stays"),
    [
        *(({"pairs": [{"instruction": "a", "output": "b"}]}, False), ({"text": "my own"}, False), ({"data": "./mine.jsonl"}, False)),
        *(({"data": "/mine.jsonl"}, False), ({"data": "mine.jsonl"}, False), ({"data": ["x"]}, False), ({"data": "../org/x"}, False)),
        *(({"data": "builtin"}, True), ({"data": "random", "text": None, "pairs": []}, True), ({"data": "datasets/org/data"}, True)),
        ({"data": "org/data@main"}, True),
    ],
)
def test_text_of_a_visitors_own_is_not_kept(given: dict[str, Any], stays: bool) -> None:
    made = json.loads(dtype(1).model_dump_json())
    text = json.dumps(made | {"analyzer": "conflict", "request": {"model": "org/name"} | given})
    assert (storable_result(text, key="", created=now(), contributor="") is not None) == stays


def test_a_report_that_is_too_large_is_refused(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RESULT_BYTES", 1_000)
    assert library.add_result(dtype(1), public=True) is None


def test_samples_are_kept(library: Library) -> None:
    assert library.add_result(dtype(1, "sample:tiny-bf16"), public=True) is not None
    assert library.result(f"{1:064x}") is not None
    assert library.counts().unpublished == 0  # there is no dataset
    assert library.counts().models == 59 and library.models(Query(text="sample:")).total == 0  # it is no model of anybody
    assert library.results(Query(text="sample:")).total == 1 and library.model("sample:tiny-bf16") is not None


def test_the_oldest_results_go_and_labels_never(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("components.library.result_rows.LIBRARY_RESULTS", 3)
    for number in range(5):
        library.add_result(dtype(number, f"org/m{number}"), public=True)
    assert [library.result(f"{number:064x}") is not None for number in range(5)] == [False, False, True, True, True]
    assert library.model("org/m0") is None and library.counts().labels == 59
    monkeypatch.setattr(limits, "LIBRARY_BYTES", 1)
    library.add_result(dtype(9), public=True)
    assert library.counts().results == 1 and library.result(f"{9:064x}") is not None


def _sought(label: Label) -> str:
    return " ".join((label.model, label.contributor, label.evidence_link, label.evidence_quote)).lower()


def test_lists_say_what_a_plain_loop_says(library: Library) -> None:
    rng = random.Random(0)
    names = ("org/alpha", "org/beta", "Lab/Gamma", "lab/delta")
    for _ in range(120):
        who = Identity.login(rng.choice(("ann", "bob", "cyn")))
        model, precision, page = rng.choice(names), rng.choice(("bf16", "fp16", "fp32")), rng.randrange(10)
        library.add_label(model, precision, LINK, who, quote=f"page {page} of 100%")
    everything = [row.label for row in library.labels(Query(current=False, per_page=500)).rows]
    standing = {row.label.id for row in library.labels(Query(per_page=500)).rows}
    groups = {(label.model.lower(), label.contributor, label.provenance) for label in everything}
    assert len(everything) == library.counts().labels and len(standing) == len(groups) == library.counts().current
    for _ in range(60):
        query = Query(
            text=rng.choice(("", "ALPHA", "page 3", "100%", "gamma page", "_", "' OR 1=1 --", "zzz")),
            model=rng.choice(("", "", "LAB/gamma")),
            precision=rng.choice(("", "", "bf16", "x' OR 'x'='x")),
            contributor=rng.choice(("", "", "ann")),
            current=rng.random() < 0.5,
            sort=rng.choice(("", "created", "model", "precision", "contributor", "flags")),
            descending=rng.random() < 0.5,
            page=rng.randrange(1, 4),
            per_page=rng.choice((7, 50, 500)),
        )
        wanted = [
            label
            for label in everything
            if all(word in _sought(label) for word in query.text.lower().split())
            and (not query.model or label.model.lower() == query.model.lower())
            and query.precision in ("", label.precision)
            and query.contributor in ("", label.contributor)
            and (label.id in standing or not query.current)
        ]
        found = library.labels(query)
        assert found.total == len(wanted) and found.pages == max(1, -(-len(wanted) // query.per_page))
        start = (query.page - 1) * query.per_page
        assert {row.label.id for row in found.rows} <= {label.id for label in wanted}
        assert len(found.rows) == len(wanted[start : start + query.per_page])
        if query.sort and query.sort != "flags":
            shown = [getattr(row.label, query.sort).lower() for row in found.rows]
            values = sorted((getattr(label, query.sort).lower() for label in wanted), reverse=query.descending)
            assert shown == values[start : start + query.per_page]
    with pytest.raises(InvalidRequest, match="can be sorted by"):
        library.labels(Query(sort="record; DROP TABLE labels"))


def test_results_and_models_are_filtered_by_what_the_bits_say(library: Library) -> None:
    library.add_result(dtype(1, "org/a"), public=True)
    library.add_result(dtype(2, "org/b", fp16_risk={"level": "overflow", "reasons": ()}), public=True)
    library.add_label("org/c", "fp32", LINK, ANN)
    assert [row.result.models[0] for row in library.results(Query(fp16_risk="overflow")).rows] == ["org/b"]
    assert library.results(Query(storage="F32", passed_through="bf16", analyzer="dtype")).total == 2
    assert library.results(Query(storage="F3")).total == 0
    assert [row.model for row in library.models(Query(text="org/", sort="model", descending=False)).rows] == ["org/a", "org/b", "org/c"]
    assert library.models(Query(fp16_risk="fits")).total == 1
    assert library.facets("results")["fp16_risk"] == {"fits": 1, "overflow": 1}
    assert library.facets("models")["precision"]["fp32"] == library.models(Query(precision="fp32")).total
    assert library.facets("labels")["precision"]["fp32"] == library.labels(Query(precision="fp32")).total


def test_the_version_changes_with_what_is_added(library: Library) -> None:
    versions = [library.version()]
    label = library.add_label("org/a", "fp32", LINK, ANN).item
    versions.append(library.version())
    library.add_flag(label.id, FLAG_REASONS[0], BOB)
    versions.append(library.version())
    library.add_result(dtype(1, "org/a"), public=True)
    versions.append(library.version())
    library.add_label("org/a", "fp32", LINK, ANN)
    assert len(set(versions)) == 4 and library.version() == versions[-1]


def test_exports_hold_every_row_and_no_formula(library: Library, tmp_path: Path) -> None:
    library.add_label("org/name", "bf16", FORMULA, ANN)
    library.add_label("org/name", "fp16", LINK, ANN, quote="+1 <b>")
    library.add_result(dtype(1, "org/a"), public=True)
    for kind, count in (("labels", 61), ("results", 1), ("models", 61)):
        parquet = pandas.read_parquet(library.export(tmp_path, kind, "parquet"))
        table = pandas.read_csv(library.export(tmp_path, kind, "csv"), keep_default_na=False)
        lines = read_lines(library.export(tmp_path, kind, "jsonl"))
        assert len(parquet) == len(table) == len(lines) == count
        assert list(parquet.columns) == list(table.columns) == list(lines[0])
        assert not table.map(lambda cell: str(cell).startswith(("=", "+", "-", "@"))).any().any()
    quotes = [row["evidence_quote"] for row in read_lines(tmp_path / "mantissa-labels.jsonl")]
    assert {FORMULA, "+1 <b>"} <= set(quotes)
    with pytest.raises(InvalidRequest):
        library.export(tmp_path, "../secrets", "csv")


def test_the_classifier_reads_the_training_set(library: Library, tmp_path: Path) -> None:
    plain = {each.model: each.precision for each in examples()}
    exact = {"mode": "exact", "request": report().request.model_copy(update={"mode": "exact"})}
    library.add_result(dtype(1, "org/named", **exact), public=True)
    library.add_label("org/named", "bf16-mixed", LINK, ANN)
    library.add_label("org/without-extremes", "bf16", LINK, ANN)
    library.add_label("google/mt5-small", "fp16", LINK, ANN)  # a tie with the seed
    path = library.export(tmp_path, "training", "csv")
    rows = {row["model_id"]: row for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines())}
    assert "org/without-extremes" not in rows and "google/mt5-small" not in rows
    found = {each.model: each for each in examples(path)}
    assert found["org/named"].precision == "bf16"
    assert (found["org/named"].abs_max, found["org/named"].norm_min) == (1.5, 12.25)
    assert {name: each.precision for name, each in found.items() if name != "org/named"} == plain


@pytest.mark.parametrize(
    ("folder", "kind"), [("/data/x", "fuse.s3"), ("/data", "fuse.s3"), ("/database", "ext4"), ("/mnt/a b/c", "nfs4"), ("/", "ext4")]
)
def test_the_kind_of_a_mount(folder: str, kind: str) -> None:
    mounts = "/dev/vda / ext4 rw 0 0\nbucket /data fuse.s3 rw 0 0\nserver:/x /mnt/a\\040b nfs4 rw 0 0\nodd\n"
    assert mount_kind(Path(folder), mounts) == kind


def test_another_journal_where_the_mount_has_no_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Library.open(tmp_path / "local") as library:
        library.add_label("org/name", "bf16", LINK, ANN)
        assert (tmp_path / "local" / "library.sqlite3-wal").exists()
    monkeypatch.setattr(database, "journal_mode", lambda folder: "TRUNCATE")
    for name in ("local", "remote"):
        with Library.open(tmp_path / name) as library:
            library.add_label("org/other", "bf16", LINK, ANN)
            assert library.consensus("org/other").precision == "bf16"
            assert not (tmp_path / name / "library.sqlite3-wal").exists()


@pytest.mark.parametrize("journal", ["TRUNCATE", "WAL"], ids=["network mount", "mount that only seems to be local"])
def test_without_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, journal: str) -> None:
    """In SQLite's own way of accessing files that has neither shared memory nor the system's locks."""
    if journal == "TRUNCATE":  # with a library that was moved there
        with Library.open(tmp_path) as library:
            library.add_label("org/name", "bf16", LINK, ANN)
    monkeypatch.setattr(database, "journal_mode", lambda folder: journal)
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda path, **options: connect(f"file:{path}?vfs=unix-dotfile", uri=True, **options))
    with Library.open(tmp_path) as first, Library.open(tmp_path) as second:
        first.add_label("org/name", "fp16", LINK, ANN)
        second.add_label("org/other", "bf16", LINK, ANN)
        assert {row.label.model for row in first.labels(Query(contributor="ann")).rows} == {"org/name", "org/other"}
        assert len(second.history("org/name")) == (2 if journal == "TRUNCATE" else 1)
    assert not (tmp_path / "library.sqlite3-wal").exists()
    assert sqlite3.connect(tmp_path / "library.sqlite3").execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_folder_that_cannot_be_used_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(LibraryUnavailable, match="MANTISSA_DATA") as caught:
        Library.open(tmp_path / "file")
    assert str(tmp_path) not in str(caught.value)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "library.sqlite3").write_bytes(b"no database " * 1000)
    with pytest.raises(LibraryUnavailable, match="damaged"):
        Library.open(tmp_path / "damaged")
    with pytest.raises(MantissaError):
        Library.open(tmp_path / "x", dataset="../../etc")
