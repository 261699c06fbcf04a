"""Analyses that run a model. The first one imports torch; on ZeroGPU each requests a GPU for an estimated time."""

import math
import os
from collections.abc import Callable, Generator, Iterator
from importlib import import_module
from typing import Any

from analyzers import limits
from analyzers.base import Request
from analyzers.checkpoints import Access
from analyzers.errors import MantissaError
from analyzers.language_models.bounded_process import prepare

# For the time requested from ZeroGPU: a constant, and the speeds of loading weights and running models. Conservative guesses.
_START_SECONDS = 15
_BYTES_PER_SECOND = 1e9
_FLOPS = 5e13
# Operations per parameter and token: forward pass, backward pass to the inputs, and what is computed from them.
_FLOPS_PER_PARAMETER = 6
_STEP_SECONDS = 0.02
# Per signal of exit feedback: layers of the logit lens, and points of a sweep (settings times seeds).
_EXIT_LAYERS, _EXIT_SWEPT = 6, 21


def run(request: Request) -> Generator[Any, None, None]:
    """Analyze ``request`` within the page's limits: yields progress, then the report. Raises what the analyzer raises."""
    if _lend is None:
        yield from _analysis(request)
    else:
        yield from _with_gpu(request, _lend)


def warm() -> None:
    """Import what the first analysis would have to wait for."""
    prepare()
    from analyzers import exit_feedback, gradient_conflict, precision_variants  # noqa: F401


def gpu_seconds(parameters: int, nbytes: int, tokens: int, steps: int = 0) -> int:
    """Seconds of GPU to request: for loading ``nbytes`` of weights, running ``tokens`` through ``parameters``, and training ``steps``."""
    working = _FLOPS_PER_PARAMETER * parameters * tokens / _FLOPS + _STEP_SECONDS * steps
    return math.ceil(_START_SECONDS + nbytes / _BYTES_PER_SECOND + working)


def tokens(request: Any) -> int:
    """The most tokens that a request runs through the model, over all passes."""
    from analyzers.exit_feedback import ExitRequest
    from analyzers.precision_variants import PrecisionRequest

    if isinstance(request, ExitRequest):
        # each signal is a product with the head, a part of the model, for every layer, setting and seed
        points = len(request.methods) * (_EXIT_LAYERS + request.seeds + (_EXIT_SWEPT if request.sweep else 0))
        return request.samples * request.sequence_length + request.tokens * points
    if isinstance(request, PrecisionRequest):
        variants = len(request.variants)
        # fp16 may need several loss scales, and comparing takes about as long as running
        passes = 2 * variants + (1 + variants if request.pre_rounded else 1)
        return 2 * passes * request.sequences * request.sequence_length
    return int((1 if request.ffn == "original" else 2) * request.samples * request.max_length)


def steps(request: Any) -> int:
    """Training steps of the small transformer body: with each signal and with the three references, for every training seed."""
    from analyzers.exit_feedback import ExitRequest

    return request.training_steps * request.training_seeds * (len(request.methods) + 3) if isinstance(request, ExitRequest) else 0


def less(request: Request) -> str:
    """How to make a request that takes too long smaller."""
    from analyzers.exit_feedback import ExitRequest
    from analyzers.precision_variants import PrecisionRequest

    if isinstance(request, ExitRequest):
        return "fewer signals, seeds, tokens or training steps, no sweep, a smaller model"
    fewer = "fewer variants, fewer or shorter sequences" if isinstance(request, PrecisionRequest) else "fewer or shorter samples"
    return f"{fewer}, a smaller model"


def borrowed(request: Request, seconds: int) -> Iterator[Any]:
    """`run` in the process that has the GPU. An error is the last item: raised across processes, it would lose its sentence.

    seconds: the time requested; ZeroGPU reads it before this begins.
    """
    try:
        yield from _analysis(request)
    except MantissaError as error:
        yield error
    except Exception as error:
        yield RuntimeError(f"{type(error).__name__} with the GPU")


def _analysis(request: Request) -> Generator[Any, None, None]:
    from analyzers import exit_feedback, gradient_conflict, precision_variants

    analyze: dict[type[Request], Callable[..., Any]] = {
        gradient_conflict.ConflictRequest: gradient_conflict.analyze,
        precision_variants.PrecisionRequest: precision_variants.analyze,
        exit_feedback.ExitRequest: exit_feedback.analyze,
    }
    yield from analyze[type(request)](request, access=Access(), largest=limits.WEB_MODEL_WORK)


def _with_gpu(request: Any, lend: Callable[[Request, int], Iterator[Any]]) -> Iterator[Any]:
    """`borrowed`, after everything that needs no GPU: checks and downloads."""
    from analyzers.language_models.load import open_model

    with open_model(request.model, Access(), device="cpu") as opened:
        if not getattr(request, "random_init", False):
            yield from opened.fetch()
        facts = opened.facts
    seconds = gpu_seconds(facts.parameters, facts.bytes, tokens(request), steps(request))
    for item in lend(request.model_copy(update={"device": "cuda"}), seconds):
        if isinstance(item, Exception):
            raise item
        yield item


_lend: Callable[[Request, int], Iterator[Any]] | None = None
if os.environ.get("SPACES_ZERO_GPU", "").lower() in ("1", "t", "true"):  # as the package `spaces` reads it, which only a Space has
    _lend = import_module("spaces").GPU(duration=lambda _, seconds: seconds)(borrowed)
