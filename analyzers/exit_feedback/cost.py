"""Time and memory of each head, forward and backward, against exact backpropagation; and the memory that an analysis needs at most."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from time import perf_counter
from typing import Any, get_args
from weakref import finalize

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from analyzers.exit_feedback.heads import FeedbackHead, SpanHead
from analyzers.exit_feedback.measure import Signals, Tokens, groups, head_bytes, rows_at_once
from analyzers.exit_feedback.measured_points import Point
from analyzers.exit_feedback.measurements import CostRow, Form
from analyzers.exit_feedback.model_head import ModelHead


class AllocationMeter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts bytes of storages created inside it until they are freed; ``peak`` is the most at one time.

    Workspace within one operation is not seen; storages that existed before do not count.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._live: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = {storage_id(leaf) for leaf in tree_leaves((args, kwargs or {})) if isinstance(leaf, Tensor)}
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and (key := storage_id(leaf)) not in inputs | self._live.keys():
                self._live[key] = leaf.untyped_storage().nbytes()
                finalize(leaf.untyped_storage(), self._live.pop, key)
        self.peak = max(self.peak, sum(self._live.values()))
        return result


def storage_id(tensor: Tensor) -> int:
    """Equal for all views of one storage while it lives."""
    return int(tensor.untyped_storage()._cdata)


@contextmanager
def metered(device: torch.device) -> Iterator[Callable[[], int]]:
    """Yields a function that returns the peak bytes allocated so far, in addition to those at the start."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        yield lambda: torch.cuda.max_memory_allocated(device) - before
        return
    with AllocationMeter() as meter:
        yield lambda: meter.peak


REPEATS = 3
CHUNKS = 4  # of the chunked form
# Tokens are chosen so that one forward and backward pass takes about this many multiplications: a second on a small CPU, less on a GPU.
_WORK = 40_000_000_000
_MOST, _LEAST = 1_024, 64

_FLOAT, _DOUBLE = 4, 8
# Arrays of the size of a piece of logits that exist at once, and of all logits that autograd keeps for a cross-entropy.
_PIECES, _WHOLE = 6, 4
# Per token: signals in float32 at the head and before the norm, and the float64 temporaries of `products`.
_SIGNALS, _PRODUCTS = 2, 8
# Heads are built and freed, and the allocator keeps some of the freed memory.
_SLACK = 1.25


def cost_tokens(available: int, width: int, vocabulary: int) -> int:
    """The number of tokens that costs are measured on; if fewer are available, they are repeated."""
    return max(_LEAST, min(_MOST, available, _WORK // (3 * width * vocabulary)))


def cost(signals: Signals, tokens: Tokens, points: Sequence[Point]) -> Iterator[CostRow]:
    """The exact gradient, whole and chunked, then each point likewise. Ratios are relative to the faster of the first two."""
    head = signals.model_head
    count = cost_tokens(len(tokens), head.width, head.vocabulary)
    index = torch.arange(count, device=tokens.targets.device) % len(tokens)
    fastest: tuple[float, int] | None = None
    for point in (signals.exact_point, *points):
        built = signals.anchored(point, tokens)
        if isinstance(built, SpanHead):
            built.anchor_states = None  # its cost includes choosing them from the tokens of the batch
        built.requires_grad_(True)
        runs = [(form, *_measured(built, tokens.hidden[index], tokens.targets[index], form)) for form in get_args(Form)]
        built.requires_grad_(False)
        fastest = fastest or min((seconds, peak) for _, seconds, peak in runs)
        for form, seconds, peak in runs:
            time_ratio, memory_ratio = (value / by if by else None for value, by in zip((seconds, peak), fastest, strict=True))
            yield CostRow(
                method=point.method, form=form, seconds=seconds, peak_bytes=peak, time_ratio=time_ratio, memory_ratio=memory_ratio
            )


def _measured(head: FeedbackHead, hidden: Tensor, targets: Tensor, form: Form) -> tuple[float, int]:
    """Seconds (median) and peak bytes of a loss and its gradients."""

    def run() -> float:
        start = perf_counter()
        leaf = hidden.detach().requires_grad_()
        loss = cross_entropy(head(leaf), targets) if form == "whole" else head.loss(leaf, targets, chunk=-(-len(targets) // CHUNKS))
        torch.autograd.backward(loss)
        head.zero_grad(set_to_none=True)
        if hidden.is_cuda:
            torch.cuda.synchronize(hidden.device)
        return perf_counter() - start

    with metered(hidden.device) as peak:
        run()
    peak_bytes = peak()
    return median(run() for _ in range(REPEATS)), peak_bytes


def needed_bytes(head: ModelHead, points: Sequence[Point], swept: Sequence[Point], tokens: int, layers: int, narrow: bool) -> int:
    """The most memory that measuring ``points`` at ``layers`` layers and ``swept`` at the last takes, next to the model.

    Computed before anything is loaded. head: of the outline; narrow: the model runs in 16 bits, so that its head is copied.
    """
    weight = _FLOAT * head.vocabulary * head.width
    every = [*groups(points, head), *groups(swept, head)]
    codes = max(sum(head_bytes(point, head.vocabulary, head.width) for point in group) for group in every)
    decomposed = _DOUBLE * head.width * head.width * 3 + weight if any(point.head == "svd" for point in points) else 0
    rows = min(tokens, rows_at_once(head.vocabulary))
    signals = head.width * (_SIGNALS * _FLOAT * (1 + len(points)) + _PRODUCTS * _DOUBLE)
    measuring = codes + decomposed + rows * (_PIECES * _FLOAT * head.vocabulary + signals)
    count = cost_tokens(tokens, head.width, head.vocabulary)
    costs = weight + head_bytes(points[0], head.vocabulary, head.width) + _WHOLE * _FLOAT * count * head.vocabulary
    hidden = 2 * _FLOAT * tokens * head.width * (layers + 1)
    return hidden + (weight if narrow else 0) + int(_SLACK * max(measuring, decomposed + costs))
