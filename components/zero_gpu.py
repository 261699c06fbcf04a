"""Runs analyses that run a model. On ZeroGPU, each requests a GPU for an estimated time, in the web process, as its package requires."""

import asyncio
import math
import os
import re
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from importlib import import_module
from tempfile import TemporaryDirectory
from typing import Any

import gradio as gr

from analyzers import analyzer_of
from analyzers.checkpoints import Access
from analyzers.core import limits
from analyzers.core.errors import LimitExceeded
from analyzers.core.request import Progress, Request
from components import worker
from components.text import numbers

# Conservative guesses for the time requested from ZeroGPU, until runs have been measured: a constant, and the speeds of loading weights and
# running models.
_START_SECONDS = 15
_BYTES_PER_SECOND = 1e9
_FLOPS = 5e13
# Operations per parameter and token: forward pass, backward pass to the inputs, and the analysis of both.
_FLOPS_PER_PARAMETER = 6
# Speed of downloading private weights, which happens in the process that has the GPU.
_DOWNLOADED_PER_SECOND = 1e8
# ZeroGPU's default size, half an RTX PRO 6000: its memory, and the seconds of quota charged per second of a run.
_GPU_BYTES = 45_000_000_000
_QUOTA_FACTOR = 1.5
_FREE_QUOTA_SECONDS = 300
# Meanings of ZeroGPU's errors by title; the messages state the times.
_REFUSALS = {
    "ZeroGPU quota exceeded": "You have not enough GPU time left for this run",
    "ZeroGPU illegal duration": "This run needs more GPU time than you may have at once",
    "ZeroGPU pending credits exceeded": "Your other runs hold the GPU time that is left to you",
    "ZeroGPU queue timeout": "No GPU was free in time",
    "ZeroGPU worker error": "The run failed on the GPU",
}
# ZeroGPU's message when it ends a process, whether the time is over or another user gets the GPU.
_ABORTED = "GPU task aborted"
_TAG = re.compile(r"<[^<>]*>")


class GpuRefused(LimitExceeded):
    """ZeroGPU provides no GPU for a run, or not for long enough."""


async def run(request: Request, access: Access) -> AsyncGenerator[Any, None]:
    """Analyze ``request`` within the page's limits: yields progress, then the report. Raises GpuRefused."""
    if _lend is None:
        async for item in worker.run(request, limits.WEB_MODEL_WORK, access):
            yield item
        return
    items = _with_gpu(request, access, _lend)
    try:
        while (item := await asyncio.to_thread(next, items, None)) is not None:  # the thread has this call's context, with its quota
            yield item
    finally:
        await asyncio.to_thread(items.close)


def warm() -> None:
    """Import the modules that would delay the first analyses."""
    worker.start()
    if _lend is not None:
        import_module("components.preloaded_modules")


def announce() -> None:
    """Tell ZeroGPU that the app has started, as its package does when Gradio launches the server. It provides no GPU before."""
    if _lend is not None:
        import_module("spaces.zero").startup()


def gpu_seconds(parameters: int, nbytes: int, tokens: int) -> int:
    """Estimate the seconds of GPU to request for loading ``nbytes`` of weights and running ``tokens`` through ``parameters``."""
    working = _FLOPS_PER_PARAMETER * parameters * tokens / _FLOPS
    return math.ceil(_START_SECONDS + nbytes / _BYTES_PER_SECOND + working)


def borrowed(request: Request, seconds: int, access: Access, folder: str) -> Iterator[Any]:
    """Analyze in the process that has the GPU, with temporary files in ``folder``. seconds: the time requested, which ZeroGPU reads."""
    tempfile.tempdir = folder
    yield Progress(done=0, total=0, unit="", note="Starting")
    yield from worker.answers(worker.analysis, request, limits.WEB_MODEL_WORK, access)


def _with_gpu(request: Any, access: Access, lend: Callable[[Request, int, Access, str], Iterator[Any]]) -> Generator[Any, None, None]:
    """Run `borrowed` after everything that needs no GPU: estimate, checks, downloads. Raises GpuRefused."""
    from analyzers.language_models.load import OpenModel

    analyzer = analyzer_of(request)
    question = analyzer.component("layout").QUESTION
    with OpenModel(request.model, access, device="cpu") as opened:
        facts = opened.facts
    seconds = gpu_seconds(facts.parameters, facts.bytes, question.tokens(request))
    seconds += 0 if facts.public else math.ceil(facts.bytes / _DOWNLOADED_PER_SECOND)
    quota = math.ceil(_QUOTA_FACTOR * seconds)
    if quota > limits.GPU_SECONDS:
        raise GpuRefused(
            f"This run would take about {numbers.duration(quota)} of GPU quota; the limit here is {numbers.duration(limits.GPU_SECONDS)} "
            f"(MANTISSA_GPU_SECONDS): use {question.less} or the command line."
        )
    checked = request.model_copy(update={"device": "cpu"})
    yield from analyzer.load().analyze(checked, access=access, largest=limits.WEB_MODEL_WORK, lent=_GPU_BYTES)
    share = quota / _FREE_QUOTA_SECONDS
    note = f"asking for a GPU for about {numbers.duration(seconds)}, {share:.0%} of the quota that a free account has for a day"
    yield Progress(done=0, total=0, unit="turns", note=note)
    lent_at: float | None = None
    try:
        # A process that ZeroGPU kills deletes nothing, and its folder may have weights of a gated model.
        with TemporaryDirectory(prefix="mantissa-") as folder:
            for item in lend(request.model_copy(update={"device": "cuda"}), seconds, access, folder):
                lent_at = lent_at or time.monotonic()
                if isinstance(item, Exception):
                    raise item
                yield item
    except gr.Error as error:
        is_over = lent_at is not None and time.monotonic() - lent_at >= seconds
        raise GpuRefused(
            f"{_meaning(error, seconds, is_over)} use {question.less}, or the command line on a machine of your own."
        ) from None


def _meaning(error: gr.Error, seconds: int, is_over: bool) -> str:
    """Return the first half of the sentence on a ZeroGPU error. is_over: the run had the GPU for at least the ``seconds`` requested."""
    message = _TAG.sub("", str(error.message)).strip().rstrip(".")
    if message != _ABORTED:
        return f"{_REFUSALS.get(error.title, 'ZeroGPU refuses this run')} ({message}):"
    if is_over:
        return f"The run needs more GPU time than the {numbers.duration(seconds)} estimated, and was ended:"
    return "The GPU was taken back before the run ended: try again,"


_lend: Callable[[Request, int, Access, str], Iterator[Any]] | None = None
if os.environ.get("SPACES_ZERO_GPU", "").lower() in ("1", "t", "true"):  # read as in the package `spaces`, which only a Space has
    _lend = import_module("spaces").GPU(duration=lambda _, seconds, *others: seconds)(borrowed)
