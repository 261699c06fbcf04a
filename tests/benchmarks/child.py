"""Runs a program in a separate process, and measures its time, CPU time and peak memory."""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Run:
    """Measurements of one run: ``seconds`` from start to end, CPU seconds, peak resident ``bytes``, and the output."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    output: str

    @property
    def json(self) -> Any:
        """Parsed output."""
        return json.loads(self.output)


@dataclass(frozen=True, slots=True)
class Runs:
    """Several runs of one program."""

    each: tuple[Run, ...]

    @property
    def seconds(self) -> float:
        """Median of the seconds."""
        return statistics.median(run.seconds for run in self.each)

    @property
    def peak_bytes(self) -> int:
        """Largest peak of all runs."""
        return max(run.peak_bytes for run in self.each)

    def median(self, field: str) -> float:
        """Return the median over the runs of a top-level number in their JSON output."""
        return float(statistics.median(run.json[field] for run in self.each))

    def __str__(self) -> str:
        return f"{quantity(self.seconds, 's')} (min {quantity(min(run.seconds for run in self.each), 's')})"


def quantity(value: float, unit: str) -> str:
    """Format a quantity with three digits: ``2.31 s``, ``94.5 MB``."""
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:,.{digits}f} {unit}"


def run(arguments: Sequence[str], *, variables: Mapping[str, str] | None = None, folder: Path | None = None, timeout: float = 600.0) -> Run:
    """Run ``python ARGUMENTS`` to its end. Raises RuntimeError with its last message if it fails or takes too long.

    variables: added to its environment; folder: its working directory. Peak memory is the kernel's count for the new process alone. That
    count starts from the memory of this process, which therefore holds nothing large.
    """
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}  # bytecode saves parsing at start
    environ = {**inherited, "PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false", **(variables or {})}
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as messages:
        start = time.perf_counter()
        process = subprocess.Popen([sys.executable, *arguments], env=environ, cwd=folder or ROOT, stdout=output, stderr=messages)
        alarm = threading.Timer(timeout, os.kill, (process.pid, signal.SIGKILL))
        alarm.start()
        try:
            _, status, usage = os.wait4(process.pid, 0)
            seconds = time.perf_counter() - start
            process.returncode = os.waitstatus_to_exitcode(status)
        except BaseException:
            process.kill()
            process.wait()
            raise
        finally:
            alarm.cancel()
        output.seek(0)
        messages.seek(0)
        if process.returncode:
            said = messages.read().decode(errors="replace").strip()[-500:]
            raise RuntimeError(f"{' '.join(arguments)} ended with {process.returncode} after {seconds:.1f} s: {said}")
        return Run(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, output.read().decode())


def repeat(times: int, arguments: Sequence[str], *, variables: Mapping[str, str] | None = None, folder: Path | None = None) -> Runs:
    """Run a program ``times`` times after a discarded run, which fills the page cache and the cache of compiled code."""
    run(arguments, variables=variables, folder=folder)
    return Runs(tuple(run(arguments, variables=variables, folder=folder) for _ in range(times)))
