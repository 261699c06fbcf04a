"""LM heads that pass exact gradients to their weight, and a signal without backpropagation to the hidden states."""

from torch import Tensor

from analyzers.errors import InvalidRequest
from analyzers.exit_feedback.heads.anchor_span import SpanHead
from analyzers.exit_feedback.heads.ceilings import ExactHead, SvdHead, TrueRowsHead
from analyzers.exit_feedback.heads.head import FeedbackHead
from analyzers.exit_feedback.heads.parallel_component import ParallelGoldHead, ParallelHead, ParallelTopmassHead
from analyzers.exit_feedback.heads.random_codes import DenseHead, HybridHead
from analyzers.exit_feedback.signals import HeadSettings

_CLASSES: tuple[type[FeedbackHead], ...] = (
    ExactHead, DenseHead, HybridHead, ParallelHead, ParallelGoldHead, ParallelTopmassHead, SpanHead, SvdHead, TrueRowsHead,
)  # fmt: skip
HEADS: dict[str, type[FeedbackHead]] = {head.method: head for head in _CLASSES}


def build_head(
    method: str,
    weight: Tensor,
    bias: Tensor | None = None,
    settings: HeadSettings | None = None,
    *,
    logit_scale: float = 1.0,
    softcap: float | None = None,
) -> FeedbackHead:
    """Build the head of a method in HEADS. Raises InvalidRequest for any other name, and the errors of the head's class."""
    if method not in HEADS:
        raise InvalidRequest(f"There is no method {method!r}: choose from {', '.join(HEADS)}.")
    return HEADS[method](weight, bias, settings, logit_scale=logit_scale, softcap=softcap)


__all__ = ["HEADS", "FeedbackHead", "HeadSettings", "SpanHead", "SvdHead", "build_head"]
