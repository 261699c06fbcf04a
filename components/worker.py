"""Runs each analysis in a process of its own, limited in memory, so that the web process only answers requests and does not grow.

The standard library's fork server forks each process from one that has imported `preloaded_modules`. A process does one piece of work and
ends; closing the run kills the process, which frees all its memory and temporary files.
"""

import asyncio
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from analyzers import analyzer_of
from analyzers.checkpoints import Access
from analyzers.core import limits
from analyzers.core.errors import LimitExceeded, MantissaError
from analyzers.core.report import Report
from analyzers.core.request import Progress, Request
from components.errors import is_exhausted, log_unexpected

_NICE = 10  # Analyses yield the processor to the web process.
_STEP_SECONDS = 0.7  # A run yields at least this often, since Gradio notices at a yield that its client has gone.
# Stack of each thread. Unused stack counts as memory too: with the system's 8 MB, a hundred reads of the Hub would exceed the limit.
_STACK_BYTES = 512 << 10
_ATTEMPTS = 3  # A dead fork server may be noticed only at the next start.
_TOO_MUCH_MEMORY = (
    f"This analysis needs more than {limits.JOBS_MEMORY:,} bytes of memory (MANTISSA_JOBS_MEMORY): use quick mode, or the command line "
    "on a larger machine."
)
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["components.preloaded_modules", __name__])
Work = Callable[..., Iterator[Any]]


def start() -> None:
    """Start the fork server, and wait until it has imported everything, so that the first run need not."""
    _Process(runs_model=False).close()


async def run(request: Request, largest: int | None, access: Access) -> AsyncGenerator[Any, None]:
    """Analyze ``request``: yields progress at least once a second, then the report.

    largest, access: see the analyzer. Raises the analyzer's errors, and LimitExceeded if the process needs too much memory.
    """
    async for item in run_work(analysis, (request, largest, access), analyzer_of(request).runs_model):
        yield item


async def run_work(work: Work, arguments: tuple[Any, ...], runs_model: bool = False) -> AsyncGenerator[Any, None]:
    """Run ``work(*arguments)``, a function of a module without Gradio: its last item is not `Progress`."""
    starting = asyncio.ensure_future(asyncio.to_thread(_forked, runs_model))
    try:
        while not (await asyncio.wait({starting}, timeout=_STEP_SECONDS))[0]:
            yield Progress(done=0, total=0, unit="", note="Starting")
    except BaseException:
        starting.add_done_callback(_discard)
        raise
    process = starting.result()
    try:
        async for item in process.run(work, arguments):
            yield item
    finally:
        process.close()


def _discard(starting: "asyncio.Future[_Process]") -> None:
    if not starting.cancelled() and starting.exception() is None:
        starting.result().close()


def analysis(request: Request, largest: int | None, access: Access) -> Iterator[Any]:
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


class _Sent(NamedTuple):
    """A report on its way between processes: as JSON, since it may keep functions."""

    kind: type[Report]
    content: str

    def report(self) -> Report:
        return self.kind.model_validate_json(self.content)


class _Process:
    """A process for one piece of work."""

    def __init__(self, runs_model: bool) -> None:
        self._connection, theirs = _context.Pipe()
        # A killed process deletes nothing: its copies of weights are deleted here.
        self._kept = ExitStack()
        folder = self._kept.enter_context(TemporaryDirectory(prefix="mantissa-"))
        with theirs:
            self._process = _context.Process(target=_serve, args=(theirs, runs_model, folder), daemon=True)
            self._process.start()

    async def run(self, work: Work, arguments: tuple[Any, ...]) -> AsyncGenerator[Any, None]:
        item: Any = Progress(done=0, total=0, unit="", note="Starting")
        try:
            self._connection.send((work, *arguments))
            while isinstance(item, Progress):
                yield item
                if await _readable(self._connection, _STEP_SECONDS):
                    item = self._connection.recv()
                    while isinstance(item, Progress) and self._connection.poll():  # only the newest progress is of interest
                        item = self._connection.recv()
        except (EOFError, OSError):  # the system killed the process, or a library aborted it, because memory ran out
            raise LimitExceeded(_TOO_MUCH_MEMORY) from None
        if isinstance(item, Exception):
            raise item
        yield item.report() if isinstance(item, _Sent) else item

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self._process.close()
        self._connection.close()
        self._kept.close()


async def _readable(connection: Connection, seconds: float) -> bool:
    """Wait until a connection has something to read, at most so long; returns whether it has."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(connection.fileno(), ready.set)
    try:
        async with asyncio.timeout(seconds):
            await ready.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(connection.fileno())
    return True


def _forked(runs_model: bool) -> _Process:
    """Start a process. Raises LimitExceeded if none can be started."""
    for _ in range(_ATTEMPTS):
        with suppress(EOFError, OSError):  # the fork server died: the next attempt starts another
            return _Process(runs_model)
    raise LimitExceeded("No process can be started for this analysis at the moment: try again later.")


def _serve(connection: Connection, runs_model: bool, folder: str) -> None:
    """Do one piece of work in the forked process, with temporary files in ``folder``. Ends if the web process closes the connection."""
    tempfile.tempdir = folder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C, the web process ends this one
    os.nice(_NICE)
    if not runs_model and sys.platform == "linux":
        import resource

        import psutil

        threading.stack_size(_STACK_BYTES)
        most = psutil.Process().memory_info().data + limits.JOBS_MEMORY
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    with suppress(EOFError, OSError):
        for item in answers(*connection.recv()):
            connection.send(_Sent(type(item), item.model_dump_json()) if isinstance(item, Report) else item)
