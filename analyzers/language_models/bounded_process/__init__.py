"""Runs a repository's tokenizer, chat template and configuration in processes with memory and time limits.

None of these is Python code, but all compute: a template may loop forever, a dozen tokenizer rules can produce a terabyte of one letter, a
configuration may describe a billion layers, and the tokenizer library aborts the process when memory runs out. `Bounded` is the client.
``__main__`` runs in the process and answers its requests; requests and answers are JSON, one per line.

Each process is a fresh interpreter with its own environment, not a fork or a worker of `multiprocessing`: those would inherit tokens and
open connections, and `multiprocessing` imports the main module again, which takes seconds for the app.
"""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from analyzers.core import limits

Program = Literal["tokenizer", "loading"]
Failed = Literal["seconds", "bytes", "characters", "tokens", "no template", "broke off", "limit", "library", "code", "class", "said"]

_ROOT = Path(__file__).parents[3]
# The environment variables an interpreter needs to start like this one: the programs must not see tokens or other secrets.
_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "PYTHONHOME", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
_SETTINGS = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "HF_DEACTIVATE_ASYNC_LOAD": "1",  # the loader's threads would have no weights to read
    "CUDA_VISIBLE_DEVICES": "",
}
_START_SECONDS = 120
# Seconds that a "loading" process waits for another request after an answer.
IDLE_SECONDS = 60
# Wall-clock seconds to wait per second of the limit, which counts CPU time: a busy machine takes longer.
_PATIENCE = 10
_ANSWER_BYTES = 1 << 30
# The tokenizer library aborts when it cannot allocate; the system kills a process when the machine's memory runs out.
ENDED_BY: dict[int, Failed] = {-signal.SIGPROF: "seconds", -signal.SIGABRT: "bytes", -signal.SIGKILL: "bytes"}


class ProgramFailed(Exception):
    """A request that failed. failed: the limit that was reached or the kind of failure; why: the program's own message, if any."""

    def __init__(self, failed: Failed, why: str = "") -> None:
        super().__init__(failed, why)
        self.failed = failed
        self.why = why


class Bounded:
    """A process that ends when closed or when it reaches a limit; all later requests fail.

    program: "tokenizer" (`tokenizer_program.Programs`, without torch) or "loading" (`loading_program.Programs`).
    Limits: limits.TOKENIZER_MEMORY bytes (not enforced on macOS) and limits.TOKENIZER_SECONDS of CPU time per request; of the other
    program LOADING_MEMORY, in addition to its libraries, and LOADING_SECONDS.
    """

    def __init__(self, program: Program = "tokenizer") -> None:
        self.program = program
        self._connection, theirs = socket.socketpair()
        self._lines = self._connection.makefile("rwb")
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ} | _SETTINGS
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - the program is ours
                [sys.executable, "-P", "-m", __name__, program, str(IDLE_SECONDS)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # Ctrl-C in the terminal must reach the parent process only
            )
        self._started = False

    def ask(self, question: str, **options: Any) -> Any:
        """Return the result of the method ``question`` of the program. Raises ProgramFailed."""
        memory, seconds = limits.TOKENIZER_MEMORY, limits.TOKENIZER_SECONDS
        if self.program == "loading":
            memory, seconds = limits.LOADING_MEMORY, limits.LOADING_SECONDS
        asked = {"bytes": memory, "seconds": seconds, "question": question, "options": options}
        try:
            if not self._started:
                self._connection.settimeout(_START_SECONDS)
                self._started = bool(self._lines.readline())
            self._connection.settimeout(_PATIENCE * seconds)
            self._lines.write(json.dumps(asked).encode() + b"\n")
            self._lines.flush()
            line = self._lines.readline(_ANSWER_BYTES)
        except TimeoutError:
            self.close()  # otherwise the late answer would be taken for that of the next request
            raise ProgramFailed("seconds") from None
        except (OSError, ValueError):  # the process had already ended
            raise ProgramFailed("broke off") from None
        if len(line) == _ANSWER_BYTES:
            raise ProgramFailed("bytes")
        if not line.endswith(b"\n"):
            raise ProgramFailed(ENDED_BY.get(self._process.wait(), "broke off"))
        answer = json.loads(line)
        if "failed" in answer:
            raise ProgramFailed(answer["failed"], str(answer.get("why", "")))
        return answer["answer"]

    def has_ended(self) -> bool:
        """Return whether the process has ended, whatever the reason."""
        return self._process.poll() is not None

    def close(self) -> None:
        """End the process. Idempotent."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # ends the process and its computing fork
        self._process.wait()
        for opened in (self._lines, self._connection):
            with suppress(OSError):  # there may be unsent output
                opened.close()


# A "loading" process that waits for another request: importing its libraries takes seconds.
_waiting: list[Bounded] = []
os.register_at_fork(after_in_child=_waiting.clear)  # the process belongs to the parent


@atexit.register
def _close() -> None:
    while _waiting:
        _waiting.pop().close()


def open_loading() -> Bounded:
    """Return the "loading" process that waits for another request, or else a new one."""
    with suppress(IndexError):  # none waits, or another thread has taken it
        process = _waiting.pop()
        if not process.has_ended():
            return process
        process.close()
    return Bounded("loading")


def hand_back(process: Bounded) -> None:
    """Let a "loading" process, which forks for each request, wait for the next `open_loading`; close it if one is already waiting."""
    if process.has_ended() or _waiting:
        process.close()
    else:
        _waiting.append(process)
