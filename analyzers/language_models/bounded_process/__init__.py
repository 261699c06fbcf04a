"""Processes with memory and time limits that run a repository's own programs: its tokenizer and its chat template.

Neither is Python code, but both compute: a template may loop forever, a dozen tokenizer rules can produce a terabyte of one letter, and the
tokenizer library aborts the process when memory runs out. `Bounded` is the client. ``__main__`` is the server, which imports what the
programs need and forks one process per client. `programs` implements the requests. Requests and responses are JSON, one per line.

The server is `socketserver.ForkingMixIn` in a separate interpreter. The forkserver of `multiprocessing` is unsuitable: every process it
starts imports the main module again, which takes seconds for Gradio in the app, and reruns a script that has no ``__main__`` guard.
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
# The environment variables an interpreter needs to start like this one: the programs must not see tokens or other secrets.
_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "PYTHONHOME", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
# The server must be single-threaded when it forks, and needs no network.
_SETTINGS = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
# Wall-clock seconds to wait per second of limits.TOKENIZER_SECONDS, which is CPU time: a busy machine takes longer.
_PATIENCE = 10
_ANSWER_BYTES = 1 << 30
_TRIES = 3


class ProgramFailed(Exception):
    """A request that failed. failed: the limit that was reached or the kind of failure; why: the program's own message, if any."""

    def __init__(self, failed: Failed, why: str = "") -> None:
        super().__init__(failed, why)
        self.failed = failed
        self.why = why


class Bounded:
    """A process that ends when closed or when it reaches a limit; all later requests fail.

    Limits: limits.TOKENIZER_MEMORY bytes (not enforced on macOS) and limits.TOKENIZER_SECONDS of CPU time per request.
    """

    def __init__(self) -> None:
        self._connection = _server.connect()
        self._lines = self._connection.makefile("rwb")

    def ask(self, question: str, **options: Any) -> Any:
        """Return the result of the method ``question`` of `programs.Programs`. Raises ProgramFailed."""
        asked = {"bytes": limits.TOKENIZER_MEMORY, "seconds": limits.TOKENIZER_SECONDS, "question": question, "options": options}
        try:
            self._lines.write(json.dumps(asked).encode() + b"\n")
            self._lines.flush()
            line = self._lines.readline(_ANSWER_BYTES)
            answer = None if len(line) == _ANSWER_BYTES else json.loads(line)
        except TimeoutError:
            raise ProgramFailed("seconds") from None
        except (OSError, ValueError):  # the process ended before or during the write
            raise ProgramFailed("broke off") from None
        if answer is None:
            raise ProgramFailed("bytes")
        if "failed" in answer:
            raise ProgramFailed(answer["failed"], str(answer.get("why", "")))
        return answer["answer"]

    def close(self) -> None:
        """End the process. Idempotent."""
        for opened in (self._lines, self._connection):
            with suppress(OSError):  # unsent output
                opened.close()


class _Server:
    """Client side of the server: starts it once, and restarts it if it has ended. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None

    def start(self) -> None:
        with self._lock:
            self._running()

    def connect(self) -> socket.socket:
        """Connect to a new process. Raises ProgramFailed if none can be started."""
        for _ in range(_TRIES):
            ours, theirs = socket.socketpair()
            ours.settimeout(_PATIENCE * limits.TOKENIZER_SECONDS)
            channel: socket.socket | None = None
            with suppress(OSError):  # the server has just ended
                with self._lock, theirs:
                    channel = self._running()
                    socket.send_fds(channel, [b"\n"], [theirs.fileno()])
                if ours.recv(1):
                    return ours
            ours.close()
            with self._lock:
                if channel is None or channel is self._channel:  # the exit of a process may become visible a moment after its socket closes
                    self._close()
        raise ProgramFailed("broke off")

    def close(self) -> None:
        with self._lock:
            self._close()

    def _running(self) -> socket.socket:
        if self._process is not None and self._process.poll() is not None:
            self._close()
        if self._channel is None:
            self._channel, theirs = socket.socketpair()
            environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ} | _SETTINGS
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
            with theirs:
                self._process = subprocess.Popen(  # noqa: S603 - the program is ours
                    [sys.executable, "-P", "-m", __name__],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=environment,
                    start_new_session=True,  # Ctrl-C in the terminal is for the parent process only
                )
        return self._channel

    def _close(self) -> None:
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            self._process.kill()  # it would exit by itself, but only after its imports
            self._process.wait()
        self._channel = self._process = None


_server = _Server()
atexit.register(_server.close)


def prepare() -> None:
    """Start the server, which takes a second, without waiting for it."""
    _server.start()
