"""A process in which a repository's own programs run, bounded in memory and time: its tokenizer and its chat template.

Neither is code, and both compute: a template as long as it likes, a tokenizer by rules of which twelve make a terabyte of a letter, in a
library that ends the process when memory runs out. `Bounded` is our side; ``__main__`` is what such processes are forked from, which
has loaded what they need; `programs` answers in them. Questions and answers are JSON, one on a line.
"""

import atexit
import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from analyzers import limits

Failed = Literal["seconds", "bytes", "characters", "tokens", "no template", "broke off", "said"]

_ROOT = Path(__file__).parents[3]
# What an interpreter needs to start as this one did: such programs have no business with tokens and other secrets beside it.
_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "PYTHONHOME", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
# A process with threads cannot be forked, and one that asks nobody needs no network.
_SETTINGS = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
# A bounded process computes for limits.TOKENIZER_SECONDS; on a machine that has other things to do that takes longer.
_PATIENCE = 10
_ANSWER_BYTES = 1 << 30
_TRIES = 3


class ProgramFailed(Exception):
    """A question that has no answer. failed: for want of what; why: what the program says, in its own words, where it does."""

    def __init__(self, failed: Failed, why: str = "") -> None:
        super().__init__(failed, why)
        self.failed = failed
        self.why = why


class Bounded:
    """A process of its own, which ends when this is closed, or a limit is reached: then no question has an answer any more.

    At most limits.TOKENIZER_MEMORY bytes (not bounded on macOS), and limits.TOKENIZER_SECONDS of computing for each question.
    """

    def __init__(self) -> None:
        self._connection = _forks.connect()
        self._lines = self._connection.makefile("rwb")

    def ask(self, question: str, **options: Any) -> Any:
        """What the function ``question`` of `programs` answers. Raises ProgramFailed."""
        asked = {"bytes": limits.TOKENIZER_MEMORY, "seconds": limits.TOKENIZER_SECONDS, "question": question, "options": options}
        try:
            self._lines.write(json.dumps(asked).encode() + b"\n")
            self._lines.flush()
            line = self._lines.readline(_ANSWER_BYTES)
        except TimeoutError:
            raise ProgramFailed("seconds") from None
        except OSError:
            raise ProgramFailed("broke off") from None
        if len(line) == _ANSWER_BYTES:
            raise ProgramFailed("bytes")
        try:
            answer = json.loads(line)
        except ValueError:  # it ended as it wrote, or before
            raise ProgramFailed("broke off") from None
        if "failed" in answer:
            raise ProgramFailed(answer["failed"], str(answer.get("why", "")))
        return answer["answer"]

    def close(self) -> None:
        """End the process. Idempotent."""
        for each in (self._lines, self._connection):
            with suppress(OSError):  # what was not sent yet
                each.close()


class _Forks:
    """What bounded processes are forked from: started once, and again should it have ended. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None

    def start(self) -> None:
        with self._lock:
            self._started()

    def connect(self) -> socket.socket:
        """Our end of a connection to a new process. Raises ProgramFailed where there can be none."""
        for _ in range(_TRIES):
            ours, theirs = socket.socketpair()
            ours.settimeout(_PATIENCE * limits.TOKENIZER_SECONDS)
            channel: socket.socket | None = None
            with suppress(OSError):  # it has ended this moment
                with self._lock, theirs:
                    channel = self._started()
                    socket.send_fds(channel, [b"\n"], [theirs.fileno()])
                if ours.recv(1):
                    return ours
            ours.close()
            with self._lock:
                if channel is None or channel is self._channel:  # a process that is ending may for a moment not be seen to have ended
                    self._close()
        raise ProgramFailed("broke off")

    def close(self) -> None:
        with self._lock:
            self._close()

    def _started(self) -> socket.socket:
        if self._process is not None and self._process.poll() is not None:
            self._close()
        if self._channel is None:
            self._channel, theirs = socket.socketpair()
            kept = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
            places = os.pathsep.join([str(_ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]).rstrip(os.pathsep)
            with theirs:
                self._process = subprocess.Popen(  # noqa: S603 - the program is ours
                    [sys.executable, "-P", "-m", __name__],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=kept | _SETTINGS | {"PYTHONPATH": places},
                    start_new_session=True,  # an interrupt of the terminal is ours to deal with
                )
        return self._channel

    def _close(self) -> None:
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            self._process.kill()  # it would end by itself, but not before it has loaded everything
            self._process.wait()
        self._channel = self._process = None


_forks = _Forks()
atexit.register(_forks.close)


def prepare() -> None:
    """Start what bounded processes are forked from, which takes a second, and is not waited for."""
    _forks.start()
