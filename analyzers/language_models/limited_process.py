"""Answers questions about a repository's tokenizer, chat template or configuration in a process with limits.

None of these is Python code, but all compute: a template may loop forever, a dozen tokenizer rules can produce a terabyte of one letter, a
configuration may describe a billion layers, and a library aborts when memory runs out. A program is a module whose functions take and
return JSON. Its process loads the libraries once and answers each question in a fork, so that no repository sees what another one changed.

Each process is a fresh interpreter with an environment of its own, not a worker of `multiprocessing`: such a worker has its parent's
secrets and imports its main module again. It ends with its parent.
"""

import atexit
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, cast

from analyzers.core import errors, limits
from analyzers.core.errors import InvalidCheckpoint, LimitExceeded, MantissaError
from analyzers.core.terminal import quoted

Program = Literal["tokenizing", "loading"]
_ROOT = Path(__file__).parents[2]
_PACKAGE = "analyzers.language_models"
# Libraries that transformers imports if they are installed, which takes a second: tokenizers compute without torch, and no model needs
# the others.
_LEFT_OUT: dict[Program, tuple[str, ...]] = {"tokenizing": ("torch",), "loading": ("torchao", "scipy", "sklearn", "pandas")}
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
IDLE_SECONDS = 60
"""Seconds that a process waits for another question."""
_START_SECONDS = 120
# Wall-clock seconds to wait per second of the limit, which counts CPU time: a busy machine takes longer.
_PATIENCE = 10
_ANSWER_BYTES = 1 << 30
_NO_MEMORY, _BROKEN = 3, 4  # exit statuses of a fork


class LimitedProcess:
    """A process that answers questions by the functions of a program. Its limits hold for each answer.

    They are limits.TOKENIZER_MEMORY bytes, in addition to the libraries (not enforced on macOS), and TOKENIZER_SECONDS of CPU time; of
    "loading" LOADING_MEMORY and LOADING_SECONDS.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._start()

    def _start(self) -> None:
        self._connection, theirs = socket.socketpair()
        self._lines = self._connection.makefile("rwb")
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ} | _SETTINGS
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
        command = f"from {__name__} import serve; serve({self._program!r}, {IDLE_SECONDS})"
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - the program is ours
                [sys.executable, "-P", "-c", command],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # Ctrl-C in the terminal must reach the parent process only
            )

    def ask(self, subject: str, question: str, **options: Any) -> Any:
        """Return what the function ``question`` of the program returns for these options. subject: what it computes, for errors.

        Raises the function's own MantissaErrors, LimitExceeded, and InvalidCheckpoint if it fails.
        """
        if self.has_ended():  # it was idle for too long
            self.close()
            self._start()
        memory, seconds = limits.TOKENIZER_MEMORY, limits.TOKENIZER_SECONDS
        if self._program == "loading":
            memory, seconds = limits.LOADING_MEMORY, limits.LOADING_SECONDS
        asked = {"bytes": memory, "seconds": seconds, "question": question, "options": options}
        line = b""
        try:
            self._connection.settimeout(_START_SECONDS + _PATIENCE * seconds)
            self._lines.write(json.dumps(asked).encode() + b"\n")
            self._lines.flush()
            line = self._lines.readline(_ANSWER_BYTES)
        except TimeoutError:
            self.close()  # otherwise the late answer would be taken for that of the next question
            line = b'{"ended": %d}\n' % -signal.SIGPROF
        except (OSError, ValueError):  # the process had already ended
            pass
        answer: dict[str, Any] = json.loads(line) if line.endswith(b"\n") else {"ended": _NO_MEMORY if line else _BROKEN}
        if "answer" in answer:
            return answer["answer"]
        if kind := answer.get("error"):
            raise cast(type[MantissaError], getattr(errors, kind))(answer["text"])
        if "text" in answer:
            raise InvalidCheckpoint(f"{subject} fails: {quoted(answer['text'], 200)}.")
        if answer["ended"] == -signal.SIGPROF:
            raise LimitExceeded(f"{subject} takes more than {seconds:,} seconds.")
        if answer["ended"] in (_NO_MEMORY, -signal.SIGABRT, -signal.SIGKILL):  # libraries abort, the system kills
            raise LimitExceeded(f"{subject} takes more than {memory:,} bytes of memory.")
        raise InvalidCheckpoint(f"{subject} cannot be used: its process ended unexpectedly.")

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


# By program, a process that waits for another question: importing its libraries takes seconds.
_waiting: dict[Program, LimitedProcess] = {}
os.register_at_fork(after_in_child=_waiting.clear)  # the processes belong to the parent


@atexit.register
def _close() -> None:
    while _waiting:
        _waiting.popitem()[1].close()


@contextmanager
def limited_process(program: Program) -> Iterator[LimitedProcess]:
    """Lend the process of ``program`` that waits, or a new one."""
    process = _waiting.pop(program, None) or LimitedProcess(program)
    try:
        yield process
    except BaseException as error:
        if not isinstance(error, MantissaError):  # it may still be computing
            process.close()
        raise
    finally:
        if program in _waiting or process.has_ended():
            process.close()
        else:
            _waiting[program] = process


def serve(program: Program, idle_seconds: int) -> None:
    """Answer questions on standard input, a socket, until it is closed or there are none for a while. Runs in the process itself."""
    for library in _LEFT_OUT[program]:
        sys.modules[library] = cast(Any, None)
    functions = import_module(f"{_PACKAGE}.{program}")
    libraries = 0
    with suppress(OSError):  # macOS, where no limit of memory is enforced
        libraries = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError), socket.socket(fileno=0) as connection, connection.makefile("rwb") as lines:
        connection.settimeout(idle_seconds)
        for line in lines:
            asked = json.loads(line)
            asked["bytes"] += libraries
            lines.write(_in_fork(partial(_answer, functions, asked)) + b"\n")
            lines.flush()


def _in_fork(work: Callable[[], bytes]) -> bytes:
    """Return the result of ``work``, or how its process ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = _BROKEN
        try:
            result = work()
            with os.fdopen(writing, "wb") as out:
                out.write(result)
            status = 0
        except MemoryError:  # perhaps there is no memory even for the answer
            status = _NO_MEMORY
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        line = answer.read()
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return line if ended == 0 else json.dumps({"ended": ended}).encode()


def _answer(functions: Any, asked: dict[str, Any]) -> bytes:
    """Answer within the limits: that of CPU time kills the process, even inside a library."""
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (asked["bytes"], asked["bytes"]))
    signal.setitimer(signal.ITIMER_PROF, asked["seconds"])
    try:
        answer = {"answer": getattr(functions, asked["question"])(**asked["options"])}
    except MantissaError as error:
        answer = {"error": type(error).__name__, "text": str(error)}
    except MemoryError:
        raise
    except BaseException as error:  # a Rust panic is not an Exception
        answer = {"text": (str(error) or type(error).__name__)[:1000]}
    return json.dumps(answer).encode()
