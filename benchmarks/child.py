"""Runs a program in a process of its own, and measures its time, processor time and peak memory."""

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Run:
    """Measurements of one run: ``seconds`` from start to end, ``processor`` seconds, peak resident ``bytes``, and the output."""

    seconds: float
    processor: float
    peak_bytes: int
    output: str


def run(command: Sequence[str], variables: Mapping[str, str], timeout: float = 900.0) -> Run:
    """Run a command to its end. Raises RuntimeError with its last message if it fails or takes too long.

    variables: added to its environment. The kernel counts the peak memory of the new process and of those that it waited for, and that
    count starts from the memory of this process, which therefore holds nothing large.
    """
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}  # bytecode saves parsing at start
    environ = {**inherited, "PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false", **variables}
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as messages:
        start = time.perf_counter()
        process = subprocess.Popen(command, env=environ, cwd=ROOT, stdout=output, stderr=messages)
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
            message = messages.read().decode(errors="replace").strip()[-500:]
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode} after {seconds:.1f} s: {message}")
        return Run(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, output.read().decode())
