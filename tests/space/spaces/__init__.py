"""Replaces the package `spaces` of ZeroGPU, which needs its servers: the same decorator, process and errors, without a GPU.

In the order of that package (0.51), the duration is computed, the scheduler grants or refuses, a process is forked, arguments and items
are pickled, and every failure is raised as gr.Error with ZeroGPU's titles and sentences. The scheduler's answer is set in the environment:
SPACES_QUOTA_LEFT (seconds), SPACES_LONGEST (seconds), SPACES_NO_GPU, SPACES_PREEMPT (items after which the process is killed). The process
is also killed when the granted time is over, with the same error, since that package has no other. SPACES_LOG names a file with one line
for each GPU granted.
"""

import inspect
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial, wraps
from pathlib import Path
from typing import Any

if "torch" in sys.modules:
    raise RuntimeError("Import spaces before torch.")

_FACTOR = 1.5  # seconds of quota per second of the default size, on RTX PRO 6000
_DEFAULT_SECONDS = 60
_zero = os.environ.get("SPACES_ZERO_GPU", "").lower() in ("1", "t", "true")


def GPU(task: Any = None, *, duration: Any = None, size: str | None = None) -> Any:  # noqa: N802 - as there
    """Decorate a task that needs a GPU; no effect outside ZeroGPU."""
    if not callable(task):
        return partial(GPU, duration=duration if task is None else task, size=size)
    return _lending(task, duration) if _zero else task


def gradio_auto_wrap(task: Any) -> Any:
    """Wrap the function of an event, as called by Gradio on a Space; no effect unless SPACES_GRADIO_AUTO_WRAP is set."""
    return task


def _lending(task: Callable[..., Any], duration: Any) -> Callable[..., Iterator[Any]]:
    assert inspect.isgeneratorfunction(task), "the app lends to generators only"

    @wraps(task)
    def handler(*values: Any, **named: Any) -> Iterator[Any]:
        found = duration(*values, **named) if callable(duration) else duration
        seconds = found.seconds if isinstance(found, timedelta) else _DEFAULT_SECONDS if found is None else found
        granted = seconds * _FACTOR
        _schedule(round(granted))
        yield from _Worker(task).items(values, named, granted)

    return handler


def _schedule(seconds: int) -> None:
    """Grant the seconds, or raise as ZeroGPU does."""
    longest, left = (int(os.environ.get(name, "1000000")) for name in ("SPACES_LONGEST", "SPACES_QUOTA_LEFT"))
    if seconds > longest:
        raise _error("ZeroGPU illegal duration", f"The requested GPU duration ({seconds}s) is larger than the maximum allowed")
    if seconds > left:
        wait = timedelta(minutes=75)
        told = f"You have exceeded your free ZeroGPU quota ({seconds}s requested vs. {left}s left). Try again in {wait}. "
        raise _error("ZeroGPU quota exceeded", told)
    if "SPACES_NO_GPU" in os.environ:
        told = (
            'No GPU was available after 60s. <a style="white-space: nowrap" href="https://huggingface.co/join">Sign-up</a> to get a higher'
        )
        raise _error("ZeroGPU queue timeout", told)
    if "SPACES_LOG" in os.environ:
        with Path(os.environ["SPACES_LOG"]).open("a") as log:
            log.write(f"{seconds}\n")


class _Worker:
    """A forked process that runs the task once and communicates in pickled bytes."""

    def __init__(self, task: Callable[..., Any]) -> None:
        self._task = task

    def items(self, values: Any, named: Any, granted: float) -> Iterator[Any]:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(self._task, ours, theirs), daemon=True)
        process.start()
        theirs.close()
        over = threading.Timer(granted, process.kill)
        over.start()
        try:
            ours.send_bytes(pickle.dumps((values, named)))
            while True:
                try:
                    kind, item = pickle.loads(ours.recv_bytes())
                except EOFError:
                    raise _error("ZeroGPU worker error", "GPU task aborted") from None
                if kind == "error":
                    raise _error("ZeroGPU worker error", item)
                if kind == "end":
                    return
                yield item
        finally:
            over.cancel()
            process.kill()
            process.join()
            ours.close()


def _serve(task: Callable[..., Any], ours: Any, theirs: Any) -> None:
    ours.close()
    values, named = pickle.loads(theirs.recv_bytes())
    last = int(os.environ.get("SPACES_PREEMPT", "-1"))
    try:
        for number, item in enumerate(task(*values, **named)):
            if number == last:
                os.kill(os.getpid(), signal.SIGKILL)
            theirs.send_bytes(pickle.dumps(("item", item)))
        theirs.send_bytes(pickle.dumps(("end", None)))
    except Exception as error:  # only the name of the class is sent
        theirs.send_bytes(pickle.dumps(("error", type(error).__name__)))


def _error(title: str, message: str) -> Exception:
    import gradio as gr

    return gr.Error(message, title=title, print_exception=False)
