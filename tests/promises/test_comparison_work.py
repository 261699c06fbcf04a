"""Comparisons cost little more than reading and counting once: their processor time beside a plain loop's, and what they ask of the Hub.

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

# About twice what was measured: 23 to 33 and 8 times the plain loop, and an exact comparison 5.7 to 7.8 times `sparsity` of the same pair,
# which is so short here that what does not grow with the files counts.
QUICK, EXACT, OF_SPARSITY = 60.0, 20.0, 12.0
RUNS = 3  # of quick mode, as the Hub sees them, and the plain way once


def measured(mode: str, *models: str, variables: dict[str, str] | None = None) -> dict[str, Any]:
    """Run `comparison_work` in a process of its own, in which nothing else takes time."""
    command = [sys.executable, "-m", "tests.promises.comparison_work", mode, *models]
    run = subprocess.run(command, env={**os.environ, **(variables or {})}, capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stderr[-2000:]
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def test_a_quick_comparison_costs_little_more_than_counting_its_sample_and_reads_it_once(tmp_path: Path) -> None:
    with HubProcess("--llama", "org/base=bf16", "--llama", "org/tuned=bf16+small-steps") as hub:
        before = hub.totals()
        work = measured("quick", "org/base", "org/tuned", variables=hub.environ(tmp_path))
        asked = {name: (number - before[name]) / (RUNS + 1) for name, number in hub.totals().items()}
    assert work["verdict"] == "derived"
    assert work["compare"] < QUICK * work["plain"], work
    assert work["bytes"] < 1.3 * work["sampled"], work
    assert asked["ranges"] <= 2_900 and asked["bytes"] <= 130e6, asked


def test_an_exact_comparison_reads_once_and_costs_little_more_than_what_changed(tmp_path: Path) -> None:
    folders = [tmp_path / "base", tmp_path / "tuned"]
    for folder, update in zip(folders, ("none", "scattered-0.01"), strict=True):
        folder.mkdir()
        for name, contents in llama(layers=1, hidden=2048, width=5632, vocabulary=8192, shards=1, update=update).items():
            (folder / name).write_bytes(contents if isinstance(contents, bytes) else contents.read(0, contents.size))
    work = measured("exact", *map(str, folders))
    assert work["verdict"] == "derived" and work["changed"] == work["differing"] > 0
    assert 200e6 < work["bytes"] < 1.05 * sum((folder / "model.safetensors").stat().st_size for folder in folders)
    assert work["sparsity"] < EXACT * work["plain"], work
    assert work["compare"] < OF_SPARSITY * work["sparsity"], work
