"""Measures work: of a call in processor time, and of a program in a process of its own, in which nothing else takes time."""

import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.hub.architectures import llama


def last(steps: Iterator[Any]) -> Any:
    """Return the report at the end of an analysis."""
    (report,) = deque(steps, maxlen=1)
    return report


def processor_seconds(call: Callable[[], object]) -> float:
    """Return the processor time of a call, of all threads."""
    start = time.process_time()
    call()
    return time.process_time() - start


def printed(module: str, *arguments: str, variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run a module as a program, and return the JSON object that it prints."""
    command = [sys.executable, "-m", module, *arguments]
    run = subprocess.run(command, env={**os.environ, **(variables or {})}, capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stderr[-2000:]
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def write_llama(folder: Path, layers: int = 1, update: str = "none") -> str:
    """Write a Llama-like model of 25 MB a layer into ``folder``, and return its path."""
    folder.mkdir()
    for name, contents in llama(layers=layers, hidden=1024, width=2816, vocabulary=4096, shards=1, update=update).items():
        (folder / name).write_bytes(contents if isinstance(contents, bytes) else contents.read(0, contents.size))
    return str(folder)
