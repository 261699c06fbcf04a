"""The library in a folder: what is added is there once, what is not public is nowhere, and lists say what a plain loop would say."""

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
from components.library import Identity, Library, open_library
from components.library.cache import FILE
from tests.library import LINK
from tests.library.reports import COMMIT, report
from tools.classifier import examples

ANN, BOB = Identity.login("ann"), Identity.login("bob", ("org",))
FORMULA = '=HYPERLINK("http://evil/trained/in/bf16") is in section 3'
OUR_LOG = '"precision: 16-mixed" (our own log of the run)'


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Library]:
    with Library(tmp_path / "data") as opened:
        yield opened


def add(library: Library, number: int, model: str = "org/name", **changes: Any) -> str:
    """Add a result with an id of its own, and return the id."""
    created = f"2026-11-21T00:00:{number:02}.000000Z"
    library.add_result(report(model, id=f"{number:064x}", **changes), f"{number:064x}", public=True, created=created)
    return f"{number:064x}"


def test_it_begins_with_the_documented_models(library: Library) -> None:
    assert (library.counts().labels, library.counts().labelled) == (59, 59)
    found, row = library.consensus("facebook/OPT-13b"), library.model("FACEBOOK/opt-13B")
    assert (found.precision, found.sentence) == ("fp16-mixed", "labelled fp16-mixed by 1 contributor")
    assert found.evidence == "https://arxiv.org/abs/2205.01068"
    assert row is not None and (row.model, row.precision, row.labels, row.results) == ("facebook/opt-13b", "fp16-mixed", 1, 0)


def test_labels_are_added_once_and_replaced(library: Library) -> None:
    said = [library.add_label("org/name", precision, LINK, ANN) for precision in ("bf16", "fp16", "bf16", "bf16")]
    assert {each.where for each in said} == {"saved here"}
    first, second, third, again = (each.item for each in said)
    assert third == again and [label.replaces for label in (first, second, third)] == ["", first.id, second.id]
    assert library.labels_of("Org/Name") == (third,) and library.labels_of("org/name", replaced=True) == (second, first)
    library.add_label("org/name", "fp16-mixed", OUR_LOG, BOB)
    found, row = library.consensus("org/name"), library.model("org/name")
    assert found.disputed and found.precision == "fp16-mixed" and found.evidence == OUR_LOG, "the author's word decides a tie"
    assert [(vote.precision, vote.contributors, vote.authors) for vote in found.votes] == [("fp16-mixed", 1, 1), ("bf16", 1, 0)]
    assert row is not None and (row.precision, row.disputed, row.labels) == ("fp16-mixed", True, 2)
    library.add_label("org/name", "fp16-mixed", LINK, ANN)
    assert library.consensus("org/name").evidence == OUR_LOG, "the author's comes first"


def test_a_clock_that_goes_back_does_not_revive_a_label(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    library.add_label("org/name", "bf16", LINK, ANN)
    monkeypatch.setattr("components.library.items.now", lambda: "2026-01-01T00:00:00.000000Z")
    later = library.add_label("org/name", "fp16", LINK, ANN).item
    assert library.labels_of("org/name") == (later,)


@pytest.mark.parametrize(
    ("evidence", "quote", "link", "text"),
    [
        (" HTTPS://example.org/P ", "we used\nbf16", "https://example.org/P", "we used bf16"),
        ("section 3", "We trained in bf16.", "", "“We trained in bf16.” (section 3)"),
        ("“We trained in bf16.” (section 3)", "", "", "“We trained in bf16.” (section 3)"),
        ("", "“We trained in bf16.” (section 3)", "", "“We trained in bf16.” (section 3)"),
        ("论文第三节", "所有模型均使用bf16混合精度训练。", "", "“所有模型均使用bf16混合精度训练。” (论文第三节)"),
        ("https://example.org/paper", "a\u202eb", "https://example.org/paper", "a<U+202E>b"),
    ],
)
def test_evidence_is_a_link_or_a_quote(library: Library, evidence: str, quote: str, link: str, text: str) -> None:
    label = library.add_label("org/a", "bf16", evidence, ANN, quote=quote).item
    assert (label.evidence_link, label.evidence_quote) == (link, text)


@pytest.mark.parametrize(
    ("model", "precision", "evidence"),
    [
        *(("org/name", "bf16", bad) for bad in ("", "section 3", "It was trained in bf16 I think.", "\u2800" * 50, "x" * 3_000)),
        ("org/name", "bf16", "“All models were trained in bf16.”"),
        ("org/name", "bf16", f"“All models were trained with hf_{'a' * 34}.” (section 3)"),
        *(("org/name", "bf16", f"https://{bad}") for bad in ("example.org", "localhost/a", "a@example.org/p", "1.2.3.4/p", "é.org/p")),
        ("org/name", "bf16", "https://[::1]/p"),
        *(("org/name", "bf16", bad) for bad in ("http://example.org/p", "javascript:alert(1)", "data:text/html,x", "file:///etc/passwd")),
        ("org/name", "bf16", f"{LINK}?token=hf_{'a' * 34}"),
        *(("org/name", bad, LINK) for bad in ("", "BF16", "bfloat16", "bf16\n")),
        *((bad, "bf16", LINK) for bad in ("", "org/name@main", "sample:tiny-bf16", "../etc", "/etc/passwd", "a/b/c", "org/na me", "<b>/x")),
    ],
)  # fmt: skip
def test_what_is_no_label_is_refused(library: Library, model: str, precision: str, evidence: str) -> None:
    with pytest.raises(InvalidRequest):
        library.add_label(model, precision, evidence, ANN)
    assert library.counts().labels == 59


def test_names_of_contributors() -> None:
    for bad in ("", "local:owner", "seed:mantissa", "a b", "-a", "a" * 97, "ann\n", "<b>"):
        with pytest.raises(InvalidRequest):
            Identity.login(bad)


def test_so_many_labels_an_hour_for_each_login(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LABELS_PER_HOUR", 2)
    for number in range(2):
        library.add_label(f"org/name{number}", "bf16", LINK, ANN)
    with pytest.raises(LimitExceeded, match=r"ann has added 2 labels within an hour \(MANTISSA_LABELS_PER_HOUR\): continue in 60 minutes"):
        library.add_label("org/name2", "bf16", LINK, ANN)
    library.add_label("org/name2", "bf16", LINK, BOB)
    library.add_label("org/name1", "bf16", LINK, ANN)  # the same again


def test_results(library: Library) -> None:
    first, second = add(library, 1), add(library, 2)
    add(library, 1, config_dtype="other")
    row = library.result_row(first)
    assert row is not None and library.results() == [library.result_row(second), row] and library.find(first) == (row,)
    assert (row.models, row.commits, row.mode, row.storage, row.passed_through) == (("org/name",), (COMMIT,), "exact", "F32", "bf16")
    assert row.answer and row.bytes and row.wasted and row.abs_max and row.shapes
    assert json.loads(library.result(first) or b"")["id"] == first
    assert library.newest("dtype", "ORG/name") == library.result_row(second) and library.newest("check", "org/name") is None
    known = library.model("org/name")
    assert known is not None and (known.answer, known.result, known.results, known.labels) == (row.answer, second, 2, 0)
    assert library.result("f" * 64) is None is library.result_row("../x") and library.find("") == ()


def test_models_alike_the_newest_first(library: Library) -> None:
    for number, model in enumerate(("org/first", "org/second", "org/Third"), 1):
        add(library, number, model)
    add(library, 4, "org/first")
    assert library.alike("org/third", 8) == ["org/first", "org/second"] and library.alike("ORG/second", 1) == ["org/first"]
    assert library.alike("org/unknown", 8) == []


@pytest.mark.parametrize(
    "unfit",
    [
        report("org/secret", public=False),
        report("/srv/secret"),
        report("org/secret", config_dtype=f"hf_{'a' * 34}"),
        report("org/secret", config_dtype="x" * limits.RESULT_BYTES),
        report("org/secret", id="../" * 20),
    ],
    ids=["private", "local", "token", "large", "path"],
)
def test_what_is_not_public_leaves_no_trace(library: Library, tmp_path: Path, unfit: Any) -> None:
    library.add_result(unfit, public=True)
    library.add_result(report("org/secret", id="b" * 64), public=False)
    assert library.counts().results == 0
    assert not any(b"secret" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_lists_are_searched_word_by_word(library: Library) -> None:
    random.seed(1)
    names = {f"org{number % 3}/llama-{number}b-{random.choice(('chat', 'base'))}" for number in range(30)}
    for number, name in enumerate(sorted(names)):
        add(library, number, name)
    for text in ("llama", "CHAT org1", "7b base", "base 7b", "nothing", "%", "'", "x " * 50):
        expected = {name for name in names if all(word in name for word in text.lower().split())}
        assert {row.models[0] for row in library.results(text)} >= expected
        found = [row.model for row in library.models(text)]
        assert {name for name in found if name in names} == expected and len(found) == len(set(found))
    assert [row.created for row in library.results(limit=5)] == sorted((row.created for row in library.results()), reverse=True)[:5]
    assert {label.model for label in library.labels("arxiv opt-13b")} == {"facebook/opt-13b"}


@pytest.mark.parametrize("damage", ["delete", "truncate", "garbage", "older"])
def test_the_cache_may_be_lost(tmp_path: Path, damage: str) -> None:
    with Library(tmp_path) as library:
        add(library, 1)
        library.add_label("org/name", "bf16", LINK, ANN)
        before = [library.models(), library.results(), library.labels(), library.counts()]
    path = tmp_path / FILE
    if damage == "delete":
        path.unlink()
    elif damage == "older":
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA user_version = 7")
        connection.close()
    else:
        path.write_bytes(path.read_bytes()[:5000] if damage == "truncate" else b"x" * 10_000)
    with Library(tmp_path) as library:
        assert before == [library.models(), library.results(), library.labels(), library.counts()]
        add(library, 2)
        assert library.counts().results == 2


def test_a_line_that_was_cut_is_not_an_item(tmp_path: Path) -> None:
    with Library(tmp_path) as library:
        add(library, 1)
    rows = tmp_path / "unpublished" / "results" / "000001.jsonl"
    rows.write_bytes(rows.read_bytes() + rows.read_bytes()[:50])
    with Library(tmp_path) as library:
        add(library, 2)
        assert library.counts().results == 2
    (tmp_path / FILE).unlink()
    with Library(tmp_path) as library:
        assert library.counts().results == 2


def test_one_process_for_a_folder(library: Library, tmp_path: Path) -> None:
    with pytest.raises(LibraryUnavailable, match="Another process uses the library in this folder"):
        Library(tmp_path / "data")
    library.close()
    Library(tmp_path / "data").close()


def test_what_the_operator_configures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MANTISSA_DATA", str(tmp_path / "file"))
    monkeypatch.delenv("MANTISSA_DATASET", raising=False)
    (tmp_path / "file").write_text("x")
    with pytest.raises(LibraryUnavailable, match="check MANTISSA_DATA"):
        open_library()
    monkeypatch.setenv("MANTISSA_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("SPACE_ID", "org/space")
    with open_library() as library:
        assert "lost with the next restart" in library.state().problem and library.state().restored
    monkeypatch.setenv("MANTISSA_DATASET", "https://huggingface.co/org/name")
    with pytest.raises(InvalidRequest, match="MANTISSA_DATASET"):
        open_library()


def test_exports(library: Library, tmp_path: Path) -> None:
    add(library, 1, "org/measured")
    library.add_label("org/measured", "bf16", FORMULA.replace(" is in", '" is in'), ANN, quote="It was trained in bf16.")
    for kind, count in (("labels", 60), ("results", 1), ("models", 60)):
        lines = [json.loads(line) for line in library.export(kind, "jsonl").read_text().splitlines()]
        frames = [pandas.read_parquet(library.export(kind, "parquet")), pandas.read_csv(library.export(kind, "csv"))]
        assert len(lines) == count and all(len(frame) == count and list(frame) == list(lines[0]) for frame in frames)
    assert not any(cell.startswith("=") for cell in library.export("labels", "csv").read_text().replace("\n", ",").split(","))
    known = {example.model.lower() for example in examples()}
    fitted = {example.model.lower(): example for example in examples(library.export("training", "csv"))}
    row = library.results()[0]
    assert fitted.keys() == known | {"org/measured"}
    assert (fitted["org/measured"].abs_max, fitted["org/measured"].norm_min) == (row.abs_max, row.norm_min)
    for kind, form in (("labels", "exe"), ("../labels", "csv"), ("training", "parquet")):
        with pytest.raises(MantissaError, match="exported as"):
            library.export(kind, form)
