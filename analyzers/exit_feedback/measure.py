"""Signals beside the exact gradient, a few tokens at a time, for as many heads at once as their codes leave room for.

Axes: N measured tokens, n of them at a time, V vocabulary, d width. Whatever the model ran in, the head is measured in float32.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from analyzers import limits
from analyzers.exit_feedback.alignment import FloatArray, joined, products
from analyzers.exit_feedback.heads import FeedbackHead, HeadSettings, SpanHead, SvdHead, build_head
from analyzers.exit_feedback.model_head import ModelHead
from analyzers.exit_feedback.settings import Point

_FLOAT = 4
_ROWS = 16  # at least so many tokens at a time, or the weights would be read over and over


@dataclass(frozen=True, eq=False, slots=True)
class Tokens:
    """Measured tokens at one layer. inner: (N, ..), what the layer gives; hidden: (N, d) float32, behind the final norm; targets: (N,)."""

    inner: Tensor
    hidden: Tensor
    targets: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, head: ModelHead, inner: Tensor, targets: Tensor) -> "Tokens":
        """Through the tail of a model, onto the device of its head."""
        inner = inner.to(head.weight.device)
        return cls(inner, head.tail(inner).to(inner.device, torch.float32), targets.to(inner.device))

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(slots=True)
class Measured:
    """(N, 5) `products` of each point, in order; at the head, and before the norm if that was asked for. losses: (N,)."""

    losses: list[FloatArray] = field(default_factory=list)
    at_head: dict[Point, list[FloatArray]] = field(default_factory=dict)
    before: dict[Point, list[FloatArray]] = field(default_factory=dict)

    def rows(self, point: Point) -> FloatArray:
        """Of all tokens, at the head."""
        return joined(self.at_head[point])

    def rows_before(self, point: Point) -> FloatArray:
        """Of all tokens, before the norm."""
        return joined(self.before[point])

    @property
    def loss(self) -> FloatArray:
        """(N,) in nats."""
        return np.concatenate(self.losses)


class Signals:
    """Heads on one weight. Built for each group of points, and let go of; the decomposition of the weight is kept."""

    def __init__(self, head: ModelHead) -> None:
        self.model_head = head
        self._weight = head.weight.detach().float()
        self._bias = None if head.bias is None else head.bias.detach().float()
        self._svd: SvdHead | None = None
        self.exact_point = Point("exact", HeadSettings())
        self.exact = self.built(self.exact_point)

    def built(self, point: Point) -> FeedbackHead:
        """The head of a point."""
        if point.head == "svd" and self._svd is not None:
            return self._svd.at_rank(point.settings.rank)
        head = build_head(
            point.head, self._weight, self._bias, point.settings, logit_scale=self.model_head.scale, softcap=self.model_head.cap
        )
        if isinstance(head, SvdHead):
            self._svd = head
        return head.requires_grad_(False)

    def anchored(self, point: Point, tokens: Tokens) -> FeedbackHead:
        """The head of a point; a span's anchors are the same for all pieces of the tokens."""
        head = self.built(point)
        if isinstance(head, SpanHead):
            drawn = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(point.settings.seed))[: point.settings.anchors]
            head.anchor_states = tokens.hidden[drawn.to(tokens.hidden.device)]
        return head

    def measure(self, tokens: Tokens, points: Sequence[Point], before: bool) -> Iterator[Measured]:
        """Every point on every token. Yields the same object after each piece of each group, complete at last. before: also there."""
        found = Measured(at_head={point: [] for point in points}, before={point: [] for point in points} if before else {})
        for number, group in enumerate(groups(points, self.model_head)):
            heads = {point: self.anchored(point, tokens) for point in group}
            for here in pieces(len(tokens), self.model_head.vocabulary):
                hidden, targets = tokens.hidden[here], tokens.targets[here]
                gradient, losses = self._logit_gradient(hidden, targets)
                if number == 0:
                    found.losses.append(losses.double().cpu().numpy())
                exact = self.exact.signal(hidden, gradient, targets)
                signals = []
                for point, head in heads.items():
                    signal = head.signal(hidden, gradient, targets)
                    found.at_head[point].append(products(signal, exact, hidden))
                    if before:
                        signals.append(signal)
                if before:
                    inner = tokens.inner[here]
                    exact, *signals = self.model_head.before(inner, [exact, *signals])
                    for point, signal in zip(group, signals, strict=True):
                        found.before[point].append(products(signal, exact, inner))
                yield found
            del heads, head  # or they would live on while those of the next group are built

    @torch.no_grad()
    def _logit_gradient(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """dL/dz (n, V) of the sum of the tokens' cross-entropies, and these (n,)."""
        logits = self.exact(hidden)
        log_p = torch.log_softmax(logits, -1)
        losses = -log_p.gather(-1, targets[:, None]).squeeze(-1)
        gradient = log_p.exp_()
        # p - 1 of a token that is nearly certain would be lost to rounding.
        gradient[torch.arange(len(targets), device=targets.device), targets] = torch.expm1(-losses)
        return gradient, losses


def pieces(tokens: int, vocabulary: int) -> list[slice]:
    """So many tokens at a time that their logits in float32 take no more than `limits.EXIT_LOGITS_BYTES`."""
    step = piece(vocabulary)
    return [slice(first, first + step) for first in range(0, tokens, step)]


def piece(vocabulary: int) -> int:
    """Tokens at a time."""
    return max(_ROWS, limits.EXIT_LOGITS_BYTES // (_FLOAT * vocabulary))


def groups(points: Sequence[Point], head: ModelHead) -> list[list[Point]]:
    """Points in order, cut where what their heads keep would be more than `limits.EXIT_CODES_BYTES`."""
    found: list[list[Point]] = []
    room = 0
    for point in points:
        takes = kept(point, head.vocabulary, head.width)
        if not found or takes > room:
            found.append([])
            room = limits.EXIT_CODES_BYTES
        found[-1].append(point)
        room -= takes
    return found


def kept(point: Point, vocabulary: int, width: int) -> int:
    """Bytes that a head keeps beside its weight: codes and expander, factors, logits of anchors, or a number for each token."""
    settings = point.settings
    columns = {"span": settings.anchors, "true_rows": 0, "parallel": 0}.get(point.head, settings.rank)
    return _FLOAT * ((vocabulary + width) * columns + 4 * vocabulary)
