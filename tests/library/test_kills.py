"""Labels while the process is killed again and again and the Hub fails in every second call: none is lost, none counts twice."""

import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from components.library import Label, Library
from tests.hub import Fault, LocalHub
from tests.library import DATASET
from tests.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@dataclass
class EverySecond(Fault):
    """A failure of every second call."""

    calls: int = 0

    def matches(self, method: str, path: str, ranged: bool) -> bool:
        """Count the calls, and match the even ones."""
        self.calls += 1
        return self.calls % 2 == 0


@pytest.mark.parametrize("count", [28, pytest.param(1000, marks=pytest.mark.exhaustive)])
def test_no_label_is_lost_or_counted_twice(server: LocalHub, opened: Callable[..., Library], tmp_path: Path, count: int) -> None:
    server.add(DATASET, {"README.md": b"ours"}, kind="dataset")
    server.fault(EverySecond(".", times=None, status=503))
    acknowledged: dict[int, str] = {}
    number_of_labels, lives = random.Random(1), 0
    while len(acknowledged) < count:
        missing = min(set(range(count)) - acknowledged.keys())
        command = [sys.executable, "-m", "tests.library.adding", str(tmp_path / "a"), str(missing), str(count)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            lives += 1
            end = len(acknowledged) + number_of_labels.randint(4, 8)
            for line in process.stdout:
                if line.endswith("\n"):
                    number, identifier, _ = line.split(" ", 2)
                    assert acknowledged.setdefault(int(number), identifier) == identifier, "the same label again is the one that is there"
                if len(acknowledged) >= end:
                    process.kill()  # while other threads add
    assert lives > 1  # a life ends with at most 8 labels, and 16 more that other threads were adding
    with opened("a") as library:
        wait_until(lambda: library.state().backlog == 0)
    server.clear_faults()
    contents = server.files(DATASET, kind="dataset")
    stored = [Label.model_validate_json(content) for path, content in contents.items() if path.startswith("labels/")]
    assert {label.id for label in stored} == set(acknowledged.values()) and len(stored) == count
    assert len({(label.model, label.contributor) for label in stored}) == count
    fresh = opened("b")
    assert fresh.wait_restored(120)
    assert all(fresh.consensus(f"org/name{number}").contributors == 4 for number in range(count // 4))
