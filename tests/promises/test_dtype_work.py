"""`dtype` costs little more than reading and counting: its processor time beside a plain loop's, and what it asks of the Hub.

Times of one process on one machine are compared with each other, since seconds depend on the machine and on what else it does.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.hub import HubProcess
from tests.hub.architectures import llama

# About twice what was measured on two busy cores, 12 to 13 and 2.3 to 2.7. Where every sampled block was searched for grids to the end, a
# quick answer took 226 times the work of the histogram.
QUICK, EXACT = 25, 5
RUNS = 4  # of quick mode and of the plain way, as the Hub sees them


def measured(model: str, mode: str, variables: dict[str, str] | None = None) -> dict[str, Any]:
    """Run `dtype_work` in a process of its own, in which nothing else takes time."""
    command = [sys.executable, "-m", "tests.promises.dtype_work", model, mode]
    run = subprocess.run(command, env={**os.environ, **(variables or {})}, capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stderr[-2000:]
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def test_a_quick_answer_costs_little_more_than_a_histogram_of_its_sample(tmp_path: Path) -> None:
    with HubProcess("--llama", "org/large=bf16") as hub:
        before = hub.totals()
        work = measured("org/large", "quick", hub.environ(tmp_path))
        asked = {name: (number - before[name]) / RUNS for name, number in hub.totals().items()}
    assert work["verdict"] == "native"
    assert work["seconds"] < QUICK * work["plain"], work
    assert asked["ranges"] <= 1_250 and asked["requests"] <= 1_300 and asked["bytes"] <= 60e6, asked


def test_an_exact_answer_costs_little_more_than_counting_the_file(tmp_path: Path) -> None:
    for name, contents in llama(layers=1, hidden=2048, width=5632, vocabulary=8192, shards=1).items():
        (tmp_path / name).write_bytes(contents if isinstance(contents, bytes) else contents.read(0, contents.size))
    work = measured(str(tmp_path), "exact")
    assert work["verdict"] == "native" and work["bytes"] > 100e6
    assert work["seconds"] < EXACT * work["plain"], work
