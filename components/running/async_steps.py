"""Turns generators that compute into asynchronous ones for Gradio, with their steps in separate threads.

Gradio would run the steps in the threads that also answer quick calls, and close a generator on the event loop, which would then block
until the last read of an analysis ends.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from contextvars import copy_context
from functools import wraps
from typing import Any

import gradio as gr

from analyzers.core import limits
from components.running.queue_limits import RESTARTING, Caller, caller, is_closing
from components.site.identity import access_of, client_of

# Waiting jobs of every kind hold a thread too, as do jobs whose results nobody reads.
THREADS = 5 * limits.QUEUE
_LOOK_SECONDS = 0.5
_END = object()
_threads = ThreadPoolExecutor(THREADS, "job")


def in_background(function: Callable[..., Generator[Any, None, None]]) -> Callable[..., AsyncIterator[Any]]:
    """Turn a generator function whose first parameters are the request and the login into an asynchronous one."""

    @wraps(function)
    async def steps(request: gr.Request, login: gr.OAuthToken | None, *values: Any) -> AsyncIterator[Any]:
        session = str(getattr(request, "session_hash", None) or "")
        who = Caller(client_of(request), session, access_of(request, login))
        async with aclosing(steps_in_thread(function(request, login, *values), who)) as items:
            async for item in items:
                yield item

    return steps


async def steps_in_thread(generator: Generator[Any, None, None], who: Caller) -> AsyncGenerator[Any, None]:
    """Yield the items of ``generator``, which runs in other threads on behalf of ``who``."""
    work = _Work(generator, who)
    loop = asyncio.get_running_loop()
    try:
        while True:
            step = loop.run_in_executor(_threads, work.step)
            while not (await asyncio.wait((step,), timeout=_LOOK_SECONDS))[0]:
                if is_closing():  # the step may be waiting for the Hub
                    raise gr.Error(RESTARTING, print_exception=False)
            if (item := step.result()) is _END:
                return
            yield item
    finally:
        with suppress(RuntimeError):  # no new thread can be started: an existing one will close the generator
            _threads.submit(work.close)


class _Work:
    """A generator that may be closed by one thread while another is still in its last step.

    Its steps share a copy of the call's context, in which ZeroGPU finds whose quota to use, with the caller set.
    """

    def __init__(self, generator: Generator[Any, None, None], who: Caller) -> None:
        self._generator = generator
        self._context = copy_context()
        self._context.run(caller.set, who)
        self._lock = threading.Lock()

    def step(self) -> Any:
        """Return the next item, or `_END`."""
        with self._lock:
            return self._context.run(next, self._generator, _END)

    def close(self) -> None:
        with self._lock:
            self._context.run(self._generator.close)
