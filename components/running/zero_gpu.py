"""Analyses that run a model. On ZeroGPU each requests a GPU for an estimated time, in the web process, as its package requires."""

import math
import os
from collections.abc import Callable, Generator, Iterator
from importlib import import_module
from typing import Any

from analyzers import analyzer_of, limits
from analyzers.base import Request
from analyzers.checkpoints import Access
from components.running import analysis_process

# For the time requested from ZeroGPU: a constant, and the speeds of loading weights and running models. Conservative guesses.
_START_SECONDS = 15
_BYTES_PER_SECOND = 1e9
_FLOPS = 5e13
# Operations per parameter and token: forward pass, backward pass to the inputs, and what is computed from them.
_FLOPS_PER_PARAMETER = 6
_STEP_SECONDS = 0.02


def run(request: Request, access: Access) -> Generator[Any, None, None]:
    """Analyze ``request`` within the page's limits: yields progress, then the report. Raises what `analysis_process.run` raises."""
    if _lend is None:
        yield from analysis_process.run(request, limits.WEB_MODEL_WORK, access)
    else:
        yield from _with_gpu(request, access, _lend)


def warm() -> None:
    """Import what the first analyses would have to wait for."""
    analysis_process.start(models=_lend is None)
    if _lend is not None:
        analysis_process.import_models()


def gpu_seconds(parameters: int, nbytes: int, tokens: int, steps: int = 0) -> int:
    """Seconds of GPU to request: for loading ``nbytes`` of weights, running ``tokens`` through ``parameters``, and training ``steps``."""
    working = _FLOPS_PER_PARAMETER * parameters * tokens / _FLOPS + _STEP_SECONDS * steps
    return math.ceil(_START_SECONDS + nbytes / _BYTES_PER_SECOND + working)


def borrowed(request: Request, seconds: int) -> Iterator[Any]:
    """Analyze in the process that has the GPU. seconds: the time requested; ZeroGPU reads it before this begins."""
    yield from analysis_process.answers(request, limits.WEB_MODEL_WORK)


def _with_gpu(request: Any, lend: Callable[[Request, int], Iterator[Any]]) -> Iterator[Any]:
    """`borrowed`, after everything that needs no GPU: checks and downloads."""
    from analyzers.language_models.load import open_model

    with open_model(request.model, Access(), device="cpu") as opened:
        if not getattr(request, "random_init", False):
            yield from opened.fetch()
        facts = opened.facts
    cost = analyzer_of(request).component("form").COST
    seconds = gpu_seconds(facts.parameters, facts.bytes, cost.tokens(request), cost.steps(request))
    for item in lend(request.model_copy(update={"device": "cuda"}), seconds):
        if isinstance(item, Exception):
            raise item
        yield item


_lend: Callable[[Request, int], Iterator[Any]] | None = None
if os.environ.get("SPACES_ZERO_GPU", "").lower() in ("1", "t", "true"):  # as the package `spaces` reads it, which only a Space has
    _lend = import_module("spaces").GPU(duration=lambda _, seconds: seconds)(borrowed)
