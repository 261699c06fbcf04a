"""Time and memory of each head's forward and backward pass, relative to exact backpropagation; peak memory of an analysis."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, get_args
from weakref import finalize

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.benchmark import Timer

from analyzers.exit.heads import FeedbackHead, SpanHead
from analyzers.exit.measure import Signals, Tokens, groups, head_bytes, rows_at_once
from analyzers.exit.measured_points import Point
from analyzers.exit.model_head import ModelHead
from analyzers.exit.report import CostRow, Form


class AllocationMeter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Meter of the bytes in storages that were created inside it and are not freed; ``peak`` is their maximum.

    Workspace within one operation is not measured; storages that existed before do not count.
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
    """Return a number that is equal for all views of a storage and unique while it is allocated."""
    return int(tensor.untyped_storage()._cdata)


@contextmanager
def metered(device: torch.device) -> Iterator[Callable[[], int]]:
    """Yield a function that returns the peak of bytes allocated since the start, less those allocated before."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        yield lambda: torch.cuda.max_memory_allocated(device) - before
        return
    with AllocationMeter() as meter:
        yield lambda: meter.peak


_SECONDS = 0.05  # for which runs are repeated; the fastest counts, since other work on the machine only adds time
CHUNKS = 4  # Chunks of tokens in the chunked form.
# Multiplications of one forward and backward pass, which set the number of tokens: about a second on a small CPU, less on a GPU.
_WORK = 40_000_000_000
_MOST, _LEAST = 1_024, 64

_FLOAT, _DOUBLE = 4, 8
# Number of arrays as large as a piece of logits that exist at once; number as large as all logits in autograd's cross-entropy.
_PIECES, _WHOLE = 6, 4
# Vectors per token: signals in float32, at the head and before the norm; float64 temporaries of `products`.
_SIGNALS, _PRODUCTS = 2, 8
# Factor for memory that the allocator does not return after heads are freed.
_SLACK = 1.25


def cost_tokens(available: int, width: int, vocabulary: int) -> int:
    """Return the number of tokens to measure costs on; if fewer are available, they are repeated."""
    return max(_LEAST, min(_MOST, available, _WORK // (3 * width * vocabulary)))


def cost(signals: Signals, tokens: Tokens, points: Sequence[Point]) -> Iterator[CostRow]:
    """Measure the exact gradient, whole and chunked, then each point in both forms. Ratios are relative to the faster exact run."""
    head = signals.model_head
    count = cost_tokens(len(tokens), head.width, head.vocabulary)
    index = torch.arange(count, device=tokens.targets.device) % len(tokens)
    fastest: tuple[float, int] | None = None
    for point in (signals.exact_point, *points):
        built = signals.anchored(point, tokens)
        if isinstance(built, SpanHead):
            built.anchor_states = None  # The cost of span includes choosing anchors from the batch.
        built.requires_grad_(True)
        runs = [(form, *measured(built, tokens.hidden[index], tokens.targets[index], form)) for form in get_args(Form)]
        built.requires_grad_(False)
        fastest = fastest or min((seconds, peak) for _, seconds, peak in runs)
        for form, seconds, peak in runs:
            time_ratio, memory_ratio = (value / by if by else None for value, by in zip((seconds, peak), fastest, strict=True))
            yield CostRow(
                method=point.method, form=form, seconds=seconds, peak_bytes=peak, time_ratio=time_ratio, memory_ratio=memory_ratio
            )


def measured(head: FeedbackHead, hidden: Tensor, targets: Tensor, form: Form) -> tuple[float, int]:
    """Measure the seconds (of the fastest run) and peak bytes of a loss and its gradients."""

    def run() -> None:
        leaf = hidden.detach().requires_grad_()
        loss = cross_entropy(head(leaf), targets) if form == "whole" else head.loss(leaf, targets, chunk=-(-len(targets) // CHUNKS))
        torch.autograd.backward(loss)
        head.zero_grad(set_to_none=True)

    with metered(hidden.device) as peak:
        run()
    peak_bytes = peak()
    timer = Timer("run()", globals={"run": run}, num_threads=torch.get_num_threads())
    return min(timer.blocked_autorange(min_run_time=_SECONDS).times), peak_bytes


def needed_bytes(head: ModelHead, points: Sequence[Point], swept: Sequence[Point], tokens: int, narrow: bool) -> int:
    """Estimate the peak memory, in addition to the model, of measuring ``points`` and ``swept``.

    The estimate needs no weights. head: that of the outline; narrow: the model runs in 16 bits, so that its head is copied to float32.
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
    hidden = 4 * _FLOAT * tokens * head.width
    return hidden + (weight if narrow else 0) + int(_SLACK * max(measuring, decomposed + costs))
