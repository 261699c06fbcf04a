"""Heads of language models with an exact gradient for their weights and, for the hidden states, a signal without backpropagation."""

from torch import Tensor

from analyzers.errors import InvalidRequest
from analyzers.exit_feedback.heads.codes import CountSketch
from analyzers.exit_feedback.heads.exact import ExactHead, TrueRowsHead
from analyzers.exit_feedback.heads.head import FeedbackHead
from analyzers.exit_feedback.heads.low_rank import SvdHead
from analyzers.exit_feedback.heads.parallel import ParallelGoldHead, ParallelHead, ParallelTopmassHead
from analyzers.exit_feedback.heads.random_codes import DenseHead, HybridHead
from analyzers.exit_feedback.heads.settings import HeadSettings
from analyzers.exit_feedback.heads.span import SpanHead

HEADS: dict[str, type[FeedbackHead]] = {
    head.method: head
    for head in (
        ExactHead,
        DenseHead,
        HybridHead,
        ParallelHead,
        ParallelGoldHead,
        ParallelTopmassHead,
        SpanHead,
        SvdHead,
        TrueRowsHead,
    )
}


def build_head(
    method: str,
    weight: Tensor,
    bias: Tensor | None = None,
    settings: HeadSettings | None = None,
    *,
    logit_scale: float = 1.0,
    softcap: float | None = None,
) -> FeedbackHead:
    """The head of a method in HEADS, as its class makes it. Raises InvalidRequest for another name."""
    if method not in HEADS:
        raise InvalidRequest(f"There is no method {method!r}: choose from {', '.join(HEADS)}.")
    return HEADS[method](weight, bias, settings, logit_scale=logit_scale, softcap=softcap)


__all__ = [
    "HEADS",
    "CountSketch",
    "DenseHead",
    "ExactHead",
    "FeedbackHead",
    "HeadSettings",
    "HybridHead",
    "ParallelGoldHead",
    "ParallelHead",
    "ParallelTopmassHead",
    "SpanHead",
    "SvdHead",
    "TrueRowsHead",
    "build_head",
]
