"""Runs processes that use one library, forked from a process that has imported everything, and kills some. Run by test_processes.

``python -m tests.library.forked_processes WORK FOLDER [NUMBER JOURNAL | STEP | DATASET]`` prints one line of JSON.
"""

import json
import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pandas
import pyarrow.parquet
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_session, hf_api, lfs

import analyzers.checkpoints.hub.hub_repository
import analyzers.language_models.data_rows
from components.library import FLAG_REASONS, Identity, Library, Query, database
from components.library.dataset import Dataset
from tests.components.dtype_reports import report

# Imported before the forks, so that a fork is cheap.
_LOADED = (httpx2, pandas, pyarrow, CommitOperationAdd, CommitOperationDelete, HfApi, get_session, hf_api, lfs, analyzers)
LINK = "https://example.org/paper"
TOKEN = "hf_publisher"
_POINTS = 7  # number of points at which a publisher is killed


def fork(work: Callable[[Callable[[str], None]], None]) -> tuple[int, list[str]]:
    """Run ``work`` in a child. Returns its exit code and the lines that it reported."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.close(reading)
            work(lambda line: _tell(writing, line))
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as told:
        lines = told.read().splitlines()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), lines


def _tell(descriptor: int, line: str) -> None:
    os.write(descriptor, f"{line}\n".encode())


def together(folder: Path, count: int, journal: str) -> dict[str, Any]:
    """Run ``count`` concurrent processes, each of which adds its own labels and results, and a label and a result that all others add too.

    journal: the journal mode, as on a mount that requires it; "" for that of ``folder``.
    """
    if journal:
        database.journal_mode = lambda folder: journal
    reading, writing = os.pipe()
    children = []
    for number in range(count):
        child = os.fork()
        if not child:
            status = 1
            try:
                with Library.open(folder) as library:
                    for line in _contribute(library, number):
                        _tell(writing, line)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    os.close(writing)
    with os.fdopen(reading) as told:
        lines = told.read().splitlines()
    ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return {"ends": ends, "acknowledged": lines}


def _contribute(library: Library, number: int) -> list[str]:
    own = Identity.login(f"user{number}")
    labels = [library.add_label(f"org/m{number}-{each}", "bf16", LINK, own) for each in range(2)]
    labels += [
        library.add_label("org/shared", "fp16", LINK, own),
        library.add_label("org/shared", "bf16", LINK, Identity.login("everybody")),
    ]
    results = [library.add_result(report(f"org/m{number}", id=f"{number:064x}"), public=True)]
    results += [library.add_result(report("org/shared", id="f" * 64), public=True)]
    return [saved.item.id for saved in labels + results if saved is not None]


class Killer:
    """A counter of SQL statements over all connections that kills this process at the start of the statement with a given number."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.seen = 0

    def __call__(self, statement: str) -> None:
        """Count a statement that begins."""
        self.seen += 1
        if self.seen == self._number:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self) -> None:
        """Watch every connection of a library from now on."""
        connect = database.Database._connect

        def watched(library: database.Database) -> sqlite3.Connection:
            connection = connect(library)
            connection.set_trace_callback(self)
            return connection

        database.Database._connect = watched  # type: ignore[method-assign, assignment]


def killed(folder: Path, step: int) -> dict[str, Any]:
    """Kill a contributor at each statement in turn, or at every ``step``-th. Returns the problems and the number of kills."""
    template = folder / "template"
    with Library.open(template) as library:
        library.add_label("org/name", "fp16", LINK, Identity.login("ann"))
    wrong, kills, number = list[str](), 0, 1 - step
    while True:
        number += step
        place = folder / f"killed-{number}"
        shutil.copytree(template, place)
        end, told = fork(lambda tell, place=place, number=number: _contribute_until(place, number, tell))  # type: ignore[misc]
        if end == 0:
            return {"wrong": wrong, "kills": kills}
        kills += end == -signal.SIGKILL
        _, problems = fork(lambda tell, place=place, told=told: _look(place, told, tell))  # type: ignore[misc]
        wrong += [f"{number}: {problem}" for problem in problems if problem != "looked"]
        if "looked" not in problems:
            wrong.append(f"{number}: the library could not be used again")
        shutil.rmtree(place)


def _contribute_until(place: Path, number: int, tell: Callable[[str], None]) -> None:
    Killer(number).watch()
    with Library.open(place) as library:
        tell(_steps(library)[0]())
        tell(_steps(library)[1]())
        tell(_steps(library)[2]())


def _steps(library: Library) -> list[Callable[[], str]]:
    """Return the contributor's steps: a label that replaces one, a flag of it, and a result."""
    ann, bob = Identity.login("ann"), Identity.login("bob")
    label = "69" * 32

    def flag() -> str:
        (row,) = [each for each in library.labels(Query(model="org/name")).rows if each.label.contributor == "ann"]
        return library.add_flag(row.label.id, FLAG_REASONS[0], bob).item.id

    def result() -> str:
        saved = library.add_result(report("org/name", id=label), public=True)
        assert saved is not None
        return saved.item.id

    return [lambda: library.add_label("org/name", "bf16", LINK, ann).item.id, flag, result]


def _look(place: Path, told: list[str], tell: Callable[[str], None]) -> None:
    """Check after a kill that the file is intact, that acknowledged items are stored, and that repeating the steps completes them."""
    connection = sqlite3.connect(place / "library.sqlite3")
    if connection.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
        tell("the file is damaged")
    connection.close()
    with Library.open(place) as library:
        found = [library.label(item) is not None or library.result(item) is not None for item in told]
        if len(told) > 1:
            found[1] = bool(library.flags(told[0]))
        if not all(found):
            tell("what was acknowledged is gone")
        again = [step() for step in _steps(library)]
        if again[: len(told)] != told:
            tell("the same again is another")
        counts = library.counts()
        model = library.model("org/name")
        if (counts.labels, counts.current, counts.flags, counts.results) != (61, 60, 1, 1) or model is None or model.labels != 1:
            tell(f"not once each: {counts}")
    tell("looked")


def killed_publishing(folder: Path, dataset: str) -> dict[str, Any]:
    """Kill a publisher at some statements, from the first to the last, and just after the Hub has committed; then publish again."""
    template = folder / "template"
    with Library.open(template) as library:
        library.add_label("org/name", "bf16", LINK, Identity.login("ann"))
        library.add_result(report("org/name", id="ab" * 32), public=True)
    points, kills, wrong = [0], 0, list[str]()
    for place, name in ((folder / f"publishing-{each}", f"{dataset}-{each}") for each in range(_POINTS + 2)):
        shutil.copytree(template, place)
        end, told = fork(lambda tell, place=place, point=points[-1], name=name: _publish_until(place, point, name, tell))  # type: ignore[misc]
        if points == [0]:  # without a kill: the child reported its statements, and those before the commit
            last, committed = map(int, told)
            points = [committed, *(1 + round(each * (last - 1) / (_POINTS - 1)) for each in range(_POINTS))]
            continue
        kills += end == -signal.SIGKILL
        if fork(lambda tell, place=place, name=name: _publish(place, name))[0] != 0:  # type: ignore[misc]
            wrong.append(f"killed at {points[-1]}, it could not be published again")
        points.pop()
    return {"kills": kills, "wrong": wrong, "datasets": [f"{dataset}-{each}" for each in range(_POINTS + 2)]}


def _publish(place: Path, dataset: str) -> None:
    with Library.open(place, dataset, token=TOKEN, background=False) as library:
        library.publish()
        assert library.counts().unpublished == 0


def _publish_until(place: Path, number: int, dataset: str, tell: Callable[[str], None]) -> None:
    killer = Killer(number)
    killer.watch()
    commit = Dataset.commit
    committed = list[int]()

    def watched(*arguments: Any) -> str:
        made = commit(*arguments)
        killer("the reply of a commit")  # another point at which to kill, counted as a statement
        committed.append(killer.seen)
        return made

    Dataset.commit = watched  # type: ignore[method-assign, assignment]
    _publish(place, dataset)
    tell(str(killer.seen))
    tell(str(committed[0]))


def main(work: str, folder: str, *more: str) -> None:
    """Run the work, and print its result."""
    works: dict[str, Callable[[], dict[str, Any]]] = {
        "together": lambda: together(Path(folder), int(more[0]), more[1]),
        "killed": lambda: killed(Path(folder), int(more[0])),
        "publishing": lambda: killed_publishing(Path(folder), more[0]),
    }
    print(json.dumps(works[work]()))


if __name__ == "__main__":
    main(*sys.argv[1:])
