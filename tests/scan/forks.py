"""Starts commands quickly by forking a process that has imported everything they need."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

# Forks for each line of arguments, and prints the process id, and in a second line the exit status. It has one thread, so it can fork.
_PARENT = """
import json, os, sys
from analyzers.__main__ import main
import analyzers.checkpoints.hub.hub_repository, analyzers.scan.command, analyzers.scan.run, pyarrow.parquet

for line in sys.stdin:
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os._exit(main(json.loads(line)))
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Forked:
    """A forked command. status: its exit status, or minus the number of the signal that ended it; set by `kill`."""

    def __init__(self, number: int, said: IO[str]) -> None:
        self._number = number
        self._said = said
        self.status = 0

    def running(self) -> bool:
        """Return whether the command is still running."""
        try:
            os.kill(self._number, 0)
        except ProcessLookupError:
            return False
        return True

    def kill(self) -> None:
        """Kill the command unless it has ended, and set its status."""
        with suppress(ProcessLookupError):
            os.kill(self._number, signal.SIGKILL)
        self.status = int(self._said.readline())


class Forks:
    """A process that forks commands, one at a time. Use in a ``with`` statement."""

    def __init__(self) -> None:
        self._parent = subprocess.Popen(
            [sys.executable, "-c", _PARENT],
            cwd=Path(__file__).parents[2],
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def start(self, *arguments: str) -> Forked:
        """Start ``python -m analyzers ARGUMENTS`` without imports."""
        assert self._parent.stdin is not None and self._parent.stdout is not None
        print(json.dumps(arguments), file=self._parent.stdin, flush=True)
        return Forked(int(self._parent.stdout.readline()), self._parent.stdout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._parent.kill()
        self._parent.communicate()
