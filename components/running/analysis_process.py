"""Runs each analysis in its own process, so that the web process only answers requests and does not grow.

The standard library's fork server forks each process from one that has imported `preloaded_modules`, torch included, which takes it a few
seconds, and a minute if it has to compile loops. A process does one piece of work and ends; closing the run kills the process, which frees
all its memory and temporary files.
"""

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from analyzers import analyzer_of
from analyzers.checkpoints import Access
from analyzers.core import limits
from analyzers.core.errors import LimitExceeded, MantissaError
from analyzers.core.progress_bar import COMPILING
from analyzers.core.request import Progress, Request
from components.running.resource_exhaustion import is_exhausted
from components.server.log import log_unexpected

# Analyses yield the processor to the web process.
_NICE = 10
_LOOK_SECONDS = 0.3
# Stack of each thread. Unused stack counts as memory too: with the system's 8 MB, a hundred reads of the Hub would exceed JOBS_MEMORY.
_STACK_BYTES = 512 << 10
# Attempts to start a process: a dead fork server may be noticed only at the next start.
_ATTEMPTS = 3
_TOO_MUCH_MEMORY = (
    f"The analyses that run now need more than {limits.JOBS_MEMORY:,} bytes of memory together (MANTISSA_JOBS_MEMORY), and this one most "
    "of it: try again in a few minutes, or use the command line."
)

# Variable of the environment, which is all that a fork server gets: the file that it makes when it begins to compile.
COMPILING_FILE = "MANTISSA_COMPILING_FILE"

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["components.running.preloaded_modules"])
_started, _ready = threading.Event(), threading.Event()
Work = Callable[..., Iterator[Any]]
_reading: set["_Process"] = set()


def start() -> None:
    """Make `run` use processes from now on, after waiting until they can be forked."""
    _started.set()
    try:
        with TemporaryDirectory(prefix="mantissa-") as folder:
            os.environ[COMPILING_FILE] = f"{folder}/compiling"
            _Process(runs_model=False).close()
    finally:
        os.environ.pop(COMPILING_FILE, None)
        _ready.set()


def stop() -> None:
    """Make `run` use this process from now on. Current runs continue until they are closed."""
    _started.clear()


def run(request: Request, largest: int | None, access: Access) -> Generator[Any, None, None]:
    """Analyze ``request``: yields progress, repeating the last item while nothing changes, then the report.

    largest, access: see the analyzer. Without `start`, as in tests and scripts, the analysis runs in this process. Raises the analyzer's
    errors, and LimitExceeded in the largest process if all that read weights need more than JOBS_MEMORY together.
    """
    yield from run_work(analysis, (request, largest, access), analyzer_of(request).runs_model)


def run_work(work: Work, arguments: tuple[Any, ...], runs_model: bool = False) -> Generator[Any, None, None]:
    """Run ``work(*arguments)``, a function of a module without Gradio, as `run` does: its last item is not `Progress`."""
    if not _started.is_set():
        yield from work(*arguments)
        return
    while not _ready.wait(_LOOK_SECONDS):
        file = os.environ.get(COMPILING_FILE)
        yield Progress(done=0, total=0, unit="", note=COMPILING if file and Path(file).exists() else "Starting")
    process = _forked(runs_model)
    try:
        yield from process.run(work, arguments)
    finally:
        process.close()


def analysis(request: Request, largest: int | None, access: Access) -> Generator[Any, None, None]:
    """Analyze ``request`` in this process."""
    yield from analyzer_of(request).load().analyze(request, access=access, largest=largest)


def answers(work: Work, *arguments: Any) -> Iterator[Any]:
    """Run ``work`` for another process: an error is the last item, because raised across processes it would lose its sentence."""
    try:
        yield from work(*arguments)
    except MantissaError as error:
        yield error
    except Exception as error:
        if is_exhausted(error):
            yield LimitExceeded(_TOO_MUCH_MEMORY)
            return
        log_unexpected(error)
        yield RuntimeError(f"{type(error).__name__} in the process of an analysis")


class _Process:
    """A process for one piece of work."""

    def __init__(self, runs_model: bool) -> None:
        self.runs_model = runs_model
        self._connection, theirs = _context.Pipe()
        # A killed process deletes nothing: its copies of weights are deleted here.
        self._kept = ExitStack()
        folder = self._kept.enter_context(TemporaryDirectory(prefix="mantissa-"))
        with theirs:
            self._process = _context.Process(target=_serve, args=(theirs, runs_model, folder), daemon=True)
            self._process.start()
        self._system = psutil.Process(self._process.pid)
        self._at_start = self._system.memory_info().rss
        self.grown = 0

    def run(self, work: Work, arguments: tuple[Any, ...]) -> Generator[Any, None, None]:
        if not self.runs_model:
            _reading.add(self)
        try:
            self._connection.send((work, *arguments))
            item: Any = Progress(done=0, total=0, unit="", note="Starting")
            while isinstance(item, Progress):
                yield item
                if not self.runs_model:
                    self._check_memory()
                if self._connection.poll(_LOOK_SECONDS):
                    item = self._connection.recv()
        except (EOFError, OSError):  # the system killed the process, or a library aborted it, because memory ran out
            raise LimitExceeded(_TOO_MUCH_MEMORY) from None
        if isinstance(item, Exception):
            raise item
        kind, content = item
        yield kind.model_validate_json(content)

    def _check_memory(self) -> None:
        with suppress(psutil.NoSuchProcess):
            self.grown = self._system.memory_info().rss - self._at_start
        every = [process.grown for process in list(_reading)]
        if sum(every) > limits.JOBS_MEMORY and self.grown == max(every):
            raise LimitExceeded(_TOO_MUCH_MEMORY)

    def close(self) -> None:
        _reading.discard(self)
        self._process.kill()
        self._process.join()
        self._process.close()
        self._connection.close()
        self._kept.close()


def _forked(runs_model: bool) -> _Process:
    """Start a process. Raises LimitExceeded if none can be started."""
    for _ in range(_ATTEMPTS):
        with suppress(EOFError, OSError, psutil.NoSuchProcess):  # the fork server died: the next attempt starts another
            return _Process(runs_model)
        time.sleep(_LOOK_SECONDS)
    raise LimitExceeded("No process can be started for this analysis at the moment: try again later.")


def _serve(connection: Connection, runs_model: bool, folder: str) -> None:
    """Do one piece of work in the forked process, with temporary files in ``folder``. Ends if the web process closes the connection."""
    tempfile.tempdir = folder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C, the web process ends this one
    os.nice(_NICE)
    if not runs_model and sys.platform == "linux":
        import resource

        threading.stack_size(_STACK_BYTES)
        most = psutil.Process().memory_info().data + limits.JOBS_MEMORY
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    with suppress(EOFError, OSError):
        for item in answers(*connection.recv()):
            connection.send(item if isinstance(item, Progress | Exception) else (type(item), item.model_dump_json()))
