"""The first answer after an installation: a command compiles only the loops that it needs, and says so meanwhile."""

import fcntl
import os
import pty
import resource
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import njit

from analyzers.core.progress_bar import COMPILING
from tests.cases import few

ROOT = Path(__file__).parents[1]


def _loop(codes: Any, counts: Any) -> Any:
    """Count patterns, as plainly as can be: what compiling a loop costs on this machine."""
    largest: Any = 0
    for i in range(codes.size):
        code = np.int64(codes[i])
        if code & 1:
            counts[code & 255] += 1
        largest = max(largest, code)
    return largest


def _processor_time(work: Callable[[], Any]) -> float:
    """Return the seconds of processor time of this process and of its children that have ended."""
    began = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    work()
    ended = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime for before, after in zip(began, ended, strict=True))


def _compile_one() -> None:
    njit(_loop)(np.zeros(256, np.uint16), np.zeros(256, np.int64))


def _on_a_terminal(words: str, cache: Path) -> str:
    """Run a command without any machine code on the disk, with standard error on a terminal; return what that shows."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    command = [sys.executable, "-m", "analyzers", *words.split()]
    environ = os.environ | {"NUMBA_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=follower, env=environ) as process:
        os.close(follower)
        shown = b""
        with suppress(OSError):  # the terminal is closed
            while part := os.read(leader, 4096):
                shown += part
    os.close(leader)
    assert process.returncode == 0, shown.decode()
    return shown.decode()


CASES = [
    ("dtype sample:tiny-bf16", 200),
    ("dtype sample:tiny-fp32 --exact", 240),
    ("sparsity sample:tiny-bf16 sample:tiny-tuned", 100),
]


@pytest.mark.parametrize(("words", "loops"), few(CASES, {2}))
def test_a_command_compiles_what_it_needs_and_says_so(words: str, loops: int, tmp_path: Path) -> None:
    """It takes the processor time of compiling ``loops`` plain ones; the next takes a fraction, and says nothing."""
    _compile_one()
    one = min(_processor_time(_compile_one) for _ in range(5))
    shown: list[str] = []
    first, second = (_processor_time(lambda: shown.append(_on_a_terminal(words, tmp_path))) for _ in range(2))
    assert COMPILING in shown[0] and COMPILING not in shown[1]
    assert first < loops * one
    assert second < first / 3
