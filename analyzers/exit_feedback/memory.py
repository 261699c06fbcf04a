"""What is needed beside a model while its head is measured: bytes, counted before anything is loaded."""

from collections.abc import Sequence

from analyzers.exit_feedback.cost import tokens_of
from analyzers.exit_feedback.measure import groups, kept, piece
from analyzers.exit_feedback.model_head import ModelHead
from analyzers.exit_feedback.settings import Point

_FLOAT, _DOUBLE = 4, 8
# A piece of logits so many times: itself, its gradient, those of the linear map, and what a signal makes of them.
_PIECES = 6
# Arrays of the logits' size that autograd keeps or makes for a cross-entropy.
_WHOLE = 4
# Of a piece of tokens, signals in float32 at the head and before the norm, and what products of one of them take in float64.
_SIGNALS, _PRODUCTS = 2, 8
# Codes come and go, and the allocator keeps some of what is freed.
_SLACK = 1.25


def needed_bytes(head: ModelHead, points: Sequence[Point], swept: Sequence[Point], tokens: int, layers: int, narrow: bool) -> int:
    """At most what measuring ``points`` at ``layers`` layers and ``swept`` at the last takes, on so many tokens.

    head: of the outline; narrow: the model runs in 16 bits, so that its head is copied.
    """
    weight = _FLOAT * head.vocabulary * head.width
    every = [*groups(points, head), *groups(swept, head)]
    codes = max(sum(kept(point, head.vocabulary, head.width) for point in each) for each in every)
    decomposed = _DOUBLE * head.width * head.width * 3 + weight if any(point.head == "svd" for point in points) else 0
    rows = min(tokens, piece(head.vocabulary))
    signals = head.width * (_SIGNALS * _FLOAT * (1 + len(points)) + _PRODUCTS * _DOUBLE)
    measuring = codes + decomposed + rows * (_PIECES * _FLOAT * head.vocabulary + signals)
    of_cost = tokens_of(tokens, head.width, head.vocabulary)
    costs = weight + kept(points[0], head.vocabulary, head.width) + _WHOLE * _FLOAT * of_cost * head.vocabulary
    hidden = 2 * _FLOAT * tokens * head.width * (layers + 1)
    return hidden + (weight if narrow else 0) + int(_SLACK * max(measuring, decomposed + costs))
