"""Commands that start at once: forked from a process that has imported everything they need."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

# Forks for each line of arguments, says by which number, and in a second line how it ended. One thread: it can be forked.
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
    """A command that was forked. status: its exit status, or minus the number of the signal that ended it; known once it was killed."""

    def __init__(self, number: int, said: IO[str]) -> None:
        self._number = number
        self._said = said
        self.status = 0

    def running(self) -> bool:
        """Whether it has not ended yet."""
        try:
            os.kill(self._number, 0)
        except ProcessLookupError:
            return False
        return True

    def kill(self) -> None:
        """End it, at once, unless it has ended already."""
        with suppress(ProcessLookupError):
            os.kill(self._number, signal.SIGKILL)
        self.status = int(self._said.readline())


class Forks:
    """The parent of such commands, one at a time. To be used in a ``with`` statement."""

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
        """``python -m analyzers ARGUMENTS``, with nothing left to import."""
        assert self._parent.stdin is not None and self._parent.stdout is not None
        print(json.dumps(arguments), file=self._parent.stdin, flush=True)
        return Forked(int(self._parent.stdout.readline()), self._parent.stdout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._parent.kill()
        self._parent.communicate()
