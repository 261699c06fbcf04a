"""The journal: what was committed is there, whatever happened afterwards."""

import os
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from analyzers.core.errors import HubThrottled, InvalidCheckpoint, InvalidRequest
from analyzers.scan.journal import Journal, Outcome

OUTCOMES = [
    Outcome("org/a", report='{"x": 1.5, "name": "\\u2028 {} \\n"}'),
    Outcome.failed("org/b", HubThrottled("The Hub is busy.")),
    Outcome.failed("/path with spaces/c", InvalidCheckpoint("It is damaged.")),
    Outcome("org/d", report="x" * 100_000),
    Outcome.failed("org/e", ZeroDivisionError("secret")),
]


def written(path: Path) -> Path:
    with Journal(path) as journal:
        for outcome in OUTCOMES:
            journal.append(replace(outcome, seconds=0.5))
    return path


def test_a_fifo_in_its_place_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "scan.sqlite")
    with pytest.raises(InvalidRequest, match=r"scan\.sqlite in the folder of the scan is not a regular file"):
        Journal(tmp_path / "scan.sqlite")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = written(tmp_path / "journal")
    with Journal(path) as journal:
        assert [journal.read(outcome.key) for outcome in OUTCOMES] == OUTCOMES
        assert [journal.entries[outcome.key].transient for outcome in OUTCOMES] == [False, True, False, False, True]
        assert [journal.entries[outcome.key].digest for outcome in OUTCOMES] == [outcome.digest for outcome in OUTCOMES]
        journal.append(Outcome("org/b", report="now"))
        assert journal.read("org/b").report == "now"
        journal.set("options", "{}")
    with Journal(path) as journal:
        assert journal.read("org/b").report == "now" and len(journal.entries) == 5
        assert journal.setting("options") == "{}" and journal.setting("others") is None
    assert "secret" not in repr(OUTCOMES[4])


def test_digests_differ_where_outcomes_do() -> None:
    different = [*OUTCOMES, Outcome("org/a", report="{}"), Outcome("org/a"), Outcome("org/f"), Outcome("org/a", error="NoWeights")]
    assert len({outcome.digest for outcome in different}) == len(different)


def test_a_journal_absorbs_another(tmp_path: Path) -> None:
    written(tmp_path / "scan-rank-1.sqlite")
    with Journal(tmp_path / "scan-rank-2.sqlite") as other:
        other.append(Outcome("org/a", report="newer", seconds=2.0), "rank 2")
    with Journal(tmp_path / "scan.sqlite") as journal:
        for path in sorted(tmp_path.glob("scan-rank-*.sqlite")):
            journal.absorb(path)
        assert journal.read("org/a").report == "newer" and [journal.read(each.key) for each in OUTCOMES[1:]] == OUTCOMES[1:]
    assert [path.name for path in tmp_path.iterdir()] == ["scan.sqlite"]
    row = sqlite3.connect(tmp_path / "scan.sqlite").execute("SELECT seconds, worker FROM outcomes WHERE key = 'org/a'").fetchone()
    assert row == (2.0, "rank 2")


@pytest.mark.parametrize("data", [b"\n\n\n", b"x" * 1000, os.urandom(4096), b"SQLite format 3\0" + b"\x01" * 4096])
def test_what_is_not_a_journal_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes(data)
    with pytest.raises(InvalidRequest, match="is damaged"):
        Journal(tmp_path / "journal")


def test_a_damaged_report_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "journal")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE outcomes SET report = x'00ff' WHERE key = 'org/a'")
    connection.close()
    with Journal(path) as journal, pytest.raises(InvalidRequest, match="is damaged"):
        journal.read("org/a")


def test_one_scan_at_a_time(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal"), pytest.raises(InvalidRequest, match="Another scan"):
        Journal(tmp_path / "journal")
    Journal(tmp_path / "journal").close()
