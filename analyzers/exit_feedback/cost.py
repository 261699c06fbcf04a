"""What each head takes on the way forth and back: time and memory, beside exact backpropagation, in the same run."""

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from time import perf_counter
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from analyzers.exit_feedback.heads import FeedbackHead, SpanHead
from analyzers.exit_feedback.measure import Signals, Tokens
from analyzers.exit_feedback.meter import metered
from analyzers.exit_feedback.report import CostRow
from analyzers.exit_feedback.settings import Point

Form = Literal["whole", "chunked"]
REPEATS = 3
# Tokens are so many that one way there and back takes about so many multiplications: a second on a small CPU, less on a GPU.
_WORK = 40_000_000_000
_MOST, _LEAST = 1_024, 64
PARTS = 4
"""Pieces of the chunked form."""


def tokens_of(available: int, width: int, vocabulary: int) -> int:
    """How many tokens costs are taken of; those there are may have to be repeated."""
    return max(_LEAST, min(_MOST, available, _WORK // (3 * width * vocabulary)))


def cost(signals: Signals, tokens: Tokens, points: Sequence[Point]) -> Iterator[CostRow]:
    """The exact gradient, whole and chunked, then the same of each point; ratios are to the first."""
    head = signals.model_head
    count = tokens_of(len(tokens), head.width, head.vocabulary)
    places = torch.arange(count, device=tokens.targets.device) % len(tokens)
    hidden, targets = tokens.hidden[places], tokens.targets[places]
    forms: tuple[Form, ...] = ("whole", "chunked")
    first: tuple[float, int] | None = None
    for point in (signals.exact_point, *points):
        built = signals.anchored(point, tokens)
        if isinstance(built, SpanHead):
            built.anchor_states = None  # its cost is that of taking them from the tokens at hand
        built.requires_grad_(True)
        for form in forms:
            seconds, peak = _measured(built, hidden, targets, form)
            first = first or (seconds, peak)
            yield CostRow(
                method=point.method,
                form=form,
                seconds=seconds,
                peak_bytes=peak,
                time_ratio=seconds / first[0] if first[0] else None,
                memory_ratio=peak / first[1] if first[1] else None,
            )
        built.requires_grad_(False)


def _measured(head: FeedbackHead, hidden: Tensor, targets: Tensor, form: Form) -> tuple[float, int]:
    """Seconds (median) and peak bytes of a loss and its gradients."""

    def run() -> None:
        leaf = hidden.detach().requires_grad_()
        loss = cross_entropy(head(leaf), targets) if form == "whole" else head.loss(leaf, targets, chunk=-(-len(targets) // PARTS))
        loss.backward()  # type: ignore[no-untyped-call]
        head.zero_grad(set_to_none=True)

    with metered(hidden.device) as peak:
        run()
    bytes_at_most = peak()
    return median(_timed(run, hidden.device) for _ in range(REPEATS)), bytes_at_most


def _timed(run: Callable[[], None], device: torch.device) -> float:
    _wait(device)
    start = perf_counter()
    run()
    _wait(device)
    return perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
