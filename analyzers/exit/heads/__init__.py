"""LM heads that pass exact gradients to their weight, and a signal without backpropagation to the hidden states."""

from analyzers.exit.heads.anchor_span import SpanHead
from analyzers.exit.heads.ceilings import ExactHead, SvdHead, TrueRowsHead
from analyzers.exit.heads.head import FeedbackHead
from analyzers.exit.heads.parallel_component import ParallelGoldHead, ParallelHead, ParallelTopmassHead
from analyzers.exit.heads.random_codes import DenseHead, HybridHead
from analyzers.exit.signals import HeadSettings

_CLASSES: tuple[type[FeedbackHead], ...] = (
    ExactHead, DenseHead, HybridHead, ParallelHead, ParallelGoldHead, ParallelTopmassHead, SpanHead, SvdHead, TrueRowsHead,
)  # fmt: skip
HEADS: dict[str, type[FeedbackHead]] = {head.method: head for head in _CLASSES}

__all__ = ["HEADS", "FeedbackHead", "HeadSettings", "SpanHead", "SvdHead"]
