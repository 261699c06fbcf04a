"""Many processes on one library, and kills wherever something is written: nothing acknowledged is lost, nothing occurs twice."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from components.library import Library, Query
from components.library.dataset_rows import row_of, take
from tests.cases import few
from tests.hub import LocalHub
from tests.library import Bytes
from tests.library.forked_processes import TOKEN

ROOT = Path(__file__).parents[2]


def forked(*arguments: str, **environ: str) -> dict[str, Any]:
    """What `tests.library.forked_processes` prints."""
    command = [sys.executable, "-m", "tests.library.forked_processes", *arguments]
    # One thread of numpy and pyarrow: a process with others cannot be forked.
    alone = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "ARROW_IO_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=os.environ | alone | environ, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("count", "journal"),
    few([(50, ""), (12, ""), (12, "TRUNCATE")], {2}, ["fifty", "twelve", "twelve without shared memory"]),
)
def test_many_processes_at_once_lose_and_double_nothing(tmp_path: Path, count: int, journal: str) -> None:
    done = forked("together", str(tmp_path), str(count), journal)
    assert done["ends"] == [0] * count
    assert len(done["acknowledged"]) == 6 * count
    with Library.open(tmp_path) as library:
        counts = library.counts()
        assert (counts.labels, counts.results, counts.models) == (59 + 3 * count + 1, count + 1, 59 + 3 * count + 1)
        for item in set(done["acknowledged"]):
            assert library.label(item) is not None or library.result(item) is not None
        shared = library.consensus("org/shared")
        assert [(vote.precision, vote.contributors) for vote in shared.votes] == [("fp16", count), ("bf16", 1)]
        assert library.labels(Query(current=False)).total == library.labels(Query()).total == counts.labels


@pytest.mark.parametrize("step", few([1, 4], {1}))
def test_a_kill_at_any_statement_loses_nothing_acknowledged(tmp_path: Path, step: int) -> None:
    done = forked("killed", str(tmp_path), str(step))
    assert done["wrong"] == []
    assert done["kills"] >= 40 // step


@pytest.mark.exhaustive
def test_a_kill_while_publishing_neither_loses_nor_doubles(hub: LocalHub, tmp_path: Path) -> None:
    hub.user(TOKEN, "server", writes=[f"org/library-{number}" for number in range(9)])
    done = forked("publishing", str(tmp_path), "org/library")
    assert done["wrong"] == [] and done["kills"] == 8
    for dataset in done["datasets"]:
        ids: dict[str, list[str]] = {"labels": [], "flags": [], "results": []}
        for path, content in hub.files(dataset, kind="dataset").items():
            if path.endswith(".parquet"):
                table = path.split("/")[0]
                for part in take(table, Bytes(path, content)):  # type: ignore[arg-type]
                    assert part.refused == 0
                    ids[table] += [row_of(item)["id"] for item in part.items]
        assert len(ids["labels"]) == len(set(ids["labels"])) == 60, dataset
        assert ids["results"] == ["ab" * 32], dataset


def test_a_second_connection_keeps_the_locks_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("components.library.database.journal_mode", lambda folder: "TRUNCATE")
    code = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('BEGIN IMMEDIATE')"
    with Library.open(tmp_path, background=False) as library, library._database.write():
        library.counts()
        other = subprocess.run([sys.executable, "-c", code, str(tmp_path / "library.sqlite3")], capture_output=True, text=True, timeout=100)
    assert "database is locked" in other.stderr
