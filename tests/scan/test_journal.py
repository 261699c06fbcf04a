"""The journal: whatever is cut off its end, every whole line before is there, and nothing else."""

import os
from pathlib import Path

import pytest

from analyzers.errors import HubThrottled, InvalidCheckpoint, InvalidRequest
from analyzers.scan.journal import Journal
from analyzers.scan.outcome import Outcome

OUTCOMES = [
    Outcome("org/a", report='{"x": 1.5, "name": "\\u2028 {} \\n"}'),
    Outcome.failed("org/b", HubThrottled("The Hub is busy.")),
    Outcome.failed("/path with spaces/c", InvalidCheckpoint("It is damaged.")),
    Outcome("org/d", report="x" * 100_000),
    Outcome.failed("org/e", ZeroDivisionError("secret")),
]


def written(path: Path) -> bytes:
    with Journal(path) as journal:
        for outcome in OUTCOMES:
            journal.append(outcome)
    return path.read_bytes()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    written(tmp_path / "journal")
    with Journal(tmp_path / "journal") as journal:
        assert [journal.read(outcome.key) for outcome in OUTCOMES] == OUTCOMES
        assert [journal.entries[outcome.key].passing for outcome in OUTCOMES] == [False, True, False, False, True]
        journal.append(Outcome("org/b", report="now"))
        assert journal.read("org/b").report == "now"
    with Journal(tmp_path / "journal") as journal:
        assert journal.read("org/b").report == "now" and len(journal.entries) == 5
    assert "secret" not in repr(OUTCOMES[4])


def test_a_torn_end_is_cut_off(tmp_path: Path) -> None:
    whole = written(tmp_path / "whole")
    ends = [0]
    for line in whole.splitlines(keepends=True):
        ends.append(ends[-1] + len(line))
    path = tmp_path / "journal"
    for cut in [*range(0, ends[3] + 1, 9), ends[2] - 1, ends[2], ends[2] + 1, ends[4] - 1, ends[4], ends[4] + 1, len(whole) - 1]:
        path.write_bytes(whole[:cut])
        with Journal(path) as journal:
            lines = sum(end <= cut for end in ends[1:])
            assert list(journal.entries) == [outcome.key for outcome in OUTCOMES[:lines]]
            journal.append(OUTCOMES[4])
            assert journal.read(OUTCOMES[4].key) == OUTCOMES[4]
        assert path.read_bytes().startswith(whole[: ends[lines]])


def test_damage_costs_the_line_it_is_in(tmp_path: Path) -> None:
    whole = written(tmp_path / "journal")
    second = whole.index(b"\n") + 20
    (tmp_path / "journal").write_bytes(whole[:second] + bytes([whole[second] ^ 1]) + whole[second + 1 :])
    with Journal(tmp_path / "journal") as journal:
        assert list(journal.entries) == [outcome.key for outcome in (OUTCOMES[0], *OUTCOMES[2:])]


@pytest.mark.parametrize("data", [b"\n\n\n", b"00000000 \n", b"x" * 1000, os.urandom(4096), b"\x00" * 4096])
def test_what_is_no_journal_is_empty(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes(data)
    with Journal(tmp_path / "journal") as journal:
        assert journal.entries == {}


def test_one_scan_at_a_time(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal"), pytest.raises(InvalidRequest, match="Another scan"):
        Journal(tmp_path / "journal")
    Journal(tmp_path / "journal").close()
