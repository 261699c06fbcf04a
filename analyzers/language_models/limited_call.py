"""Calls a library on a repository's tokenizer, chat template, configuration or data in a process with limits.

None of these is Python code, but all compute: a template may loop forever, a dozen tokenizer rules can produce a terabyte of one letter, a
configuration may describe a billion layers, and a library aborts when memory runs out or a file is damaged. Each call runs in a fork of
this process, as a worker of torch's DataLoader does, so that no repository sees what another one changed.
"""

import faulthandler
import os
import pickle
import resource
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

from analyzers.core.errors import InvalidCheckpoint, LimitExceeded, MantissaError
from analyzers.core.terminal import quoted

Result = TypeVar("Result")
_SETTINGS = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
# The loader's threads would have no weights to read.
_SETTINGS |= {"HF_DEACTIVATE_ASYNC_LOAD": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# Seconds of the clock to wait per second of the limit, which counts processor time: a busy machine takes longer.
_PATIENCE = 10
_NO_MEMORY = 3
_ATTEMPTS = 200
_forking = threading.Lock()


def limited_call(
    subject: str,
    work: Callable[[], Result],
    memory: int,
    seconds: int,
    imports: Callable[[], Any] = lambda: None,
    without: Sequence[str] = (),
) -> Result:
    """Return what ``work`` returns, computed with at most ``memory`` bytes (not enforced on macOS) and ``seconds`` of processor time.

    subject: what it computes, for errors. imports: loads libraries, which count for neither limit; without: libraries that these import if
    they are installed, which takes a second, and that ``work`` does not need. Raises the MantissaErrors of ``work``, LimitExceeded, and
    InvalidCheckpoint if it fails.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads in this process, on which the fork does not wait
        child = _fork()
    if child == 0:
        _answer(writing, work, memory, seconds, imports, without)
    os.close(writing)
    deadline, content, ended = time.monotonic() + 60 + _PATIENCE * seconds, b"", False
    try:
        while not ended and select.select([reading], [], [], max(0.0, deadline - time.monotonic()))[0]:
            part = os.read(reading, 1 << 20)
            content, ended = content + part, not part
    finally:
        os.close(reading)
        if not ended:
            os.kill(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == 0:
        kind, value = pickle.loads(content)  # noqa: S301 - written by our own code
        if kind == "error":
            raise value
        if kind == "text":
            raise InvalidCheckpoint(f"{subject} fails: {quoted(value, 200)}.")
        return cast(Result, value)
    if status == -signal.SIGPROF or not ended:
        raise LimitExceeded(f"{subject} takes more than {seconds:,} seconds.")
    if status in (_NO_MEMORY, -signal.SIGABRT, -signal.SIGKILL):  # libraries abort, the system kills
        raise LimitExceeded(f"{subject} takes more than {memory:,} bytes of memory.")
    raise InvalidCheckpoint(f"{subject} cannot be used: its process ended unexpectedly.")


def _fork() -> int:
    """Fork, one thread at a time, and again while filelock, which huggingface_hub uses, refuses since it opens or closes a file."""
    for _ in range(_ATTEMPTS):
        with _forking, suppress(RuntimeError):
            return os.fork()
        time.sleep(0.01)
    with _forking:
        return os.fork()


def _answer(
    writing: int, work: Callable[[], Any], memory: int, seconds: int, imports: Callable[[], Any], without: Sequence[str]
) -> NoReturn:
    """Write the result of ``work`` and end this process: the limit of processor time kills it even inside a library."""
    status = 1
    try:
        faulthandler.disable()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nowhere, stream)
        for number in (signal.SIGPROF, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.environ.update(_SETTINGS)
        for library in without:
            sys.modules.setdefault(library, cast(Any, None))
        imports()
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)  # those of the parent are not in a fork
        with suppress(ValueError, OSError):  # macOS, where no limit of memory is enforced
            most = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + memory
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            answer = ("result", work())
        except MantissaError as error:
            answer = ("error", error)
        except MemoryError:
            status = _NO_MEMORY
            raise
        except BaseException as error:  # a Rust panic is not an Exception
            answer = ("text", (str(error) or type(error).__name__)[:1000])
        with os.fdopen(writing, "wb") as out:
            pickle.dump(answer, out)
        status = 0
    except MemoryError:  # perhaps there is no memory even for the answer
        status = _NO_MEMORY
    finally:
        os._exit(status)
