"""Runs one analysis for a visitor: finds a stored result, waits for a turn, reports progress, and gives the result its address.

Page, API and MCP all come through `run`. It yields at least once a second, so that Gradio closes it when its client leaves.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from analyzers import analyzer_of
from analyzers.checkpoints import Access
from analyzers.core import limits
from analyzers.core.errors import LimitExceeded, MantissaError
from analyzers.core.formatting import duration
from analyzers.core.report import Report
from analyzers.core.request import Progress, Request
from components import store, worker, zero_gpu

_WAITING = 4  # Runs of one visitor that may wait.
_STEP_SECONDS = 0.7
_Result = TypeVar("_Result")


class Visitor(NamedTuple):
    """Who asks for a run. name: tells visitors apart for their share; access: what may be read, for this run only."""

    name: str = ""
    access: Access = Access()


class Finished(NamedTuple):
    """A result. address: relative to the first page; made: when it was stored (ISO), "" if it was computed now."""

    report: Report
    address: str
    made: str = ""


class Turns:
    """Lets ``total`` runs go on at once, ``each`` of one visitor, first come, first served among visitors who wait for their own turn."""

    def __init__(self, total: int, each: int) -> None:
        self._total, self._each = total, each
        self._all: asyncio.Semaphore | None = None
        self._own: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._waiting: Counter[str] = Counter()

    async def turn(self, visitor: str) -> AsyncGenerator[Progress, None]:
        """Yield progress until it is the visitor's turn, then yield once a moment until this generator is closed, which ends the turn.

        Raises LimitExceeded if the visitor has too many runs waiting.
        """
        if self._waiting[visitor] >= _WAITING:
            raise LimitExceeded(f"{_WAITING} of your analyses are waiting already: wait for one to finish, or stop it.")
        self._all = self._all or asyncio.Semaphore(self._total)
        own = self._own.get(visitor) or self._own.setdefault(visitor, asyncio.Semaphore(self._each))
        held: list[asyncio.Semaphore] = []
        self._waiting[visitor] += 1
        try:
            for semaphore in (own, self._all):
                async for progress in _acquired(semaphore):
                    yield progress
                held.append(semaphore)
            self._left(visitor)
            yield Progress(done=0, total=0, unit="", note="Starting")
        finally:
            if len(held) < 2:
                self._left(visitor)
            for semaphore in held:
                semaphore.release()

    def _left(self, visitor: str) -> None:
        self._waiting[visitor] -= 1
        if not self._waiting[visitor]:
            del self._waiting[visitor]


async def _acquired(semaphore: asyncio.Semaphore) -> AsyncIterator[Progress]:
    """Yield progress until ``semaphore`` is acquired."""
    acquiring = asyncio.ensure_future(semaphore.acquire())
    try:
        while not (await asyncio.wait({acquiring}, timeout=_STEP_SECONDS))[0]:
            yield Progress(done=0, total=0, unit="turns", note="Waiting for other analyses to finish")
    except BaseException:
        if not acquiring.cancel():
            semaphore.release()
        raise


READING = Turns(limits.JOBS, max(1, limits.JOBS // 2))
MODELS = Turns(limits.MODEL_JOBS, 1)
# Copies of weights that wait on the disk to be uploaded.
COPIES = Turns(2, 1)


async def run(request: Request, visitor: Visitor, again: bool = False) -> AsyncGenerator[Progress | Finished, None]:
    """Analyze ``request`` within the limits of the app: yields progress, then the result.

    A stored report is not computed again unless ``again``. A computed report is stored if everything it names is public. Raises
    LimitExceeded for an exact run of more than ``WEB_EXACT_BYTES`` (all checkpoints together), for more than ``WEB_MODEL_WORK`` of running
    a model, after ``JOB_SECONDS``, and the analyzer's own errors.
    """
    pinned: Any = None
    async for item in _in_thread(lambda: store.resolve(request), "Finding the model"):
        if isinstance(item, Progress):
            yield item
        else:
            pinned = item
    if not again and (found := await asyncio.to_thread(store.find, pinned)) is not None:
        yield Finished(found.report, found.address, found.made)
        return
    analyzer = analyzer_of(request)
    turns = MODELS if analyzer.runs_model else READING
    async with aclosing(turns.turn(visitor.name)) as turn:
        async for progress in turn:
            yield progress
            if progress.unit != "turns":
                break
        started = time.monotonic()
        async with aclosing(_analyzed(pinned.request, visitor.access)) as items:
            async for item in items:
                if isinstance(item, Progress):
                    if time.monotonic() - started > limits.JOB_SECONDS:
                        raise LimitExceeded(
                            f"Stopped after {duration(limits.JOB_SECONDS)}, the limit for an analysis here (MANTISSA_JOB_SECONDS): "
                            f"use {analyzer.component('layout').QUESTION.less} or the command line."
                        )
                    yield item
                else:
                    report = item.model_copy(update={"request": request})  # as typed: the report's checkpoints have the commits
                    yield Finished(report, await asyncio.to_thread(store.add, report, visitor.access))


async def _analyzed(request: Any, access: Access) -> AsyncGenerator[Any, None]:
    """Analyze ``request``, with candidates from the library if it names a single model to compare."""
    if len(getattr(request, "models", ())) == 1:
        request = request.model_copy(update={"suggested": tuple(await asyncio.to_thread(store.alike, request.models[0]))})
    if analyzer_of(request).runs_model:
        items = zero_gpu.run(request, access)
    else:
        largest = None if getattr(request, "mode", "exact") == "quick" else limits.WEB_EXACT_BYTES
        items = worker.run(request, largest, access)
    async with aclosing(items):
        async for item in items:
            yield item


async def _in_thread(function: Callable[[], _Result], note: str) -> AsyncIterator[Progress | _Result]:
    """Call ``function`` in a thread: yields progress, then what it returns."""
    calling = asyncio.ensure_future(asyncio.to_thread(function))
    while not (await asyncio.wait({calling}, timeout=_STEP_SECONDS))[0]:
        yield Progress(done=0, total=0, unit="", note=note)
    yield calling.result()


async def final(items: AsyncIterator[Progress | Finished]) -> Finished:
    """Return the result of a run, for callers that show no progress. Raises the errors of `run`."""
    async for item in items:
        if isinstance(item, Finished):
            return item
    raise MantissaError("The analysis ended without a result.")
