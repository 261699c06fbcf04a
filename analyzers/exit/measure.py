"""Measurement of signals against the exact gradient, for a few tokens and as many heads at a time as fit into memory.

Axes: N measured tokens, n of them at a time, V vocabulary, d width. The head always computes in float32, whatever the model's dtype.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from analyzers.exit.alignment import Measured, products
from analyzers.exit.heads import HEADS, FeedbackHead, HeadSettings, SpanHead, SvdHead
from analyzers.exit.heads.head import logit_gradient
from analyzers.exit.measured_points import Point
from analyzers.exit.model_head import ModelHead
from analyzers.exit.signals import EXACT

EXIT_LOGITS_BYTES = 64 << 20  # Logits computed at a time; temporaries take about six times as much in addition.
EXIT_CODES_BYTES = 512 << 20  # Memory of the heads that are measured together.
_FLOAT = 4
_ROWS = 16  # Fewer tokens at a time would spend most of the time reading weights again.


@dataclass(frozen=True, eq=False, slots=True)
class Tokens:
    """The measured tokens. inner: (N, ..), the last layer's output; hidden: (N, d) float32, after the final norm; targets: (N,)."""

    inner: Tensor
    hidden: Tensor
    targets: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, head: ModelHead, inner: Tensor, targets: Tensor) -> "Tokens":
        """Apply the model's tail to a layer's output, on the device of the head."""
        inner = inner.to(head.weight.device)
        return cls(inner, head.tail(inner).to(inner.device, torch.float32), targets.to(inner.device))

    def __len__(self) -> int:
        return len(self.targets)


class Signals:
    """Heads that share one weight and its singular value decomposition, built for one group of points at a time."""

    def __init__(self, head: ModelHead) -> None:
        self.model_head = head
        self._weight = head.weight.detach().float()
        self._bias = None if head.bias is None else head.bias.detach().float()
        self._svd: SvdHead | None = None
        self.exact_point = Point(EXACT, HeadSettings())
        self.exact = self.built(self.exact_point)

    def built(self, point: Point) -> FeedbackHead:
        """Build the head of a point."""
        if point.head == "svd" and self._svd is not None and point.settings.rank:
            return self._svd.at_rank(point.settings.rank)
        scale, cap = self.model_head.scale, self.model_head.cap
        head = HEADS[point.head](self._weight, self._bias, point.settings, logit_scale=scale, softcap=cap)
        if isinstance(head, SvdHead):
            self._svd = head
        return head.requires_grad_(False)

    def anchored(self, point: Point, tokens: Tokens) -> FeedbackHead:
        """Build the head of a point, with anchors of span that are the same for all pieces of the tokens."""
        head = self.built(point)
        if isinstance(head, SpanHead):
            order = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(point.settings.seed))
            head.anchor_states = tokens.hidden[order[: point.settings.anchors].to(tokens.hidden.device)]
        return head

    def measure(self, tokens: Tokens, points: Sequence[Point], before: bool) -> Iterator[Measured]:
        """Measure every point on every token, also before the norm if ``before``. Yields the growing result after each piece."""
        result = Measured(at_head={point: [] for point in points}, before={point: [] for point in points} if before else {})
        for number, group in enumerate(groups(points, self.model_head)):
            heads = {point: self.anchored(point, tokens) for point in group}
            for piece in pieces(len(tokens), self.model_head.vocabulary):
                hidden, targets = tokens.hidden[piece], tokens.targets[piece]
                gradient, losses = logit_gradient(self.exact(hidden), targets)
                if number == 0:
                    result.losses.append(losses.double().cpu().numpy())
                exact = self.exact.signal(hidden, gradient, targets)
                signals = [head.signal(hidden, gradient, targets) for head in heads.values()]
                for point, signal in zip(group, signals, strict=True):
                    result.at_head[point].append(products(signal, exact, hidden))
                if before:
                    inner = tokens.inner[piece]
                    exact, *signals = self.model_head.before(inner, [exact, *signals])
                    for point, signal in zip(group, signals, strict=True):
                        result.before[point].append(products(signal, exact, inner))
                del signals
                yield result
            del heads  # Frees them before the next group's are built.


def pieces(tokens: int, vocabulary: int) -> list[slice]:
    """Slice all tokens into pieces of `rows_at_once`."""
    step = rows_at_once(vocabulary)
    return [slice(first, first + step) for first in range(0, tokens, step)]


def rows_at_once(vocabulary: int) -> int:
    """Return the number of tokens whose logits in float32 take at most `EXIT_LOGITS_BYTES`, but at least `_ROWS`."""
    return max(_ROWS, EXIT_LOGITS_BYTES // (_FLOAT * vocabulary))


def groups(points: Sequence[Point], head: ModelHead) -> list[list[Point]]:
    """Group points, in order, so that the heads of a group take at most `EXIT_CODES_BYTES`; a larger head is alone."""
    result: list[list[Point]] = []
    left = 0
    for point in points:
        needed = head_bytes(point, head.vocabulary, head.width)
        if not result or needed > left:
            result.append([])
            left = EXIT_CODES_BYTES
        result[-1].append(point)
        left -= needed
    return result


def head_bytes(point: Point, vocabulary: int, width: int) -> int:
    """Return the bytes of a head in addition to its weight: codes and expander, factors, logits of anchors, and vectors of size V."""
    settings = point.settings
    columns = {"span": settings.anchors, "true_rows": 0, "parallel": 0}.get(point.head, settings.rank or 0)
    return _FLOAT * ((vocabulary + width) * columns + 4 * vocabulary)
