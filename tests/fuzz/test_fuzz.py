"""The parsers of outside bytes under mutated files: each refuses in a sentence, or reads what the library reads."""

import subprocess
import sys
import tracemalloc
from itertools import count
from pathlib import Path

import pytest

from tests.fuzz.fuzzer import Tally, examine, fuzz
from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).parents[2]
FILES = [(name, path.name) for name, target in TARGETS.items() for path in target.files()]
# As many as take about a second, always the same ones. A Parquet file that breaks ends the process: those are tried in another.
NUMBERS = {
    "safetensors": 400, "pickle": 300, "gguf": 100, "index": 1000, "json": 1000, "config": 15, "rows": 1000, "report": 150, "call": 1000,
}  # fmt: skip


@pytest.mark.parametrize(("name", "file"), FILES)
def test_the_corpus_breaks_nothing(name: str, file: str) -> None:
    target = TARGETS[name]
    examine(target, next(path for path in target.files() if path.name == file).read_bytes(), Tally())


@pytest.mark.parametrize("name", NUMBERS)
def test_a_few_mutations_break_nothing(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    tally = fuzz(TARGETS[name], 0, lambda number: number == NUMBERS[name])
    assert tally.read, "some must be read, or nothing beyond the first check is tried"
    assert capfd.readouterr() == ("", "")


def test_a_call_of_millions_of_lists_is_refused_before_it_is_parsed() -> None:
    tracemalloc.start()
    try:
        answers = TARGETS["call"].read(b'{"data": [' + b"[]," * 2_600_000 + b"[]]}")
        used = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert answers == 422
    assert used < 80_000_000


@pytest.mark.exhaustive
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", TARGETS)
def test_a_minute_of_random_mutations_breaks_nothing(name: str) -> None:
    done = subprocess.run([sys.executable, "-m", "tests.fuzz", name, "--seconds", "60"], cwd=ROOT, capture_output=True, text=True)
    print(done.stdout)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


_numbers = count()
