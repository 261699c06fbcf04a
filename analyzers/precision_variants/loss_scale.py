"""fp16's loss scale: the largest power of two at which no gradient overflows, found by trial backward passes."""

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from analyzers.precision_variants.headroom import FP16_MAX, Peaks
from analyzers.precision_variants.reference import Comparison

# Powers of two below the estimate at which the search gives up: then the scale is not what overflows.
_GIVEN_UP = 12
_LARGEST_EXPONENT = 40


@dataclass(slots=True)
class Attempt:
    """A backward pass at one scale. peaks: of the scaled gradients; finite: nothing overflowed."""

    scale: float
    comparison: Comparison
    peaks: Peaks
    finite: bool


def largest_scale(
    attempt: Callable[[float], Generator[Any, None, Attempt]], largest_gradient: float
) -> Generator[Any, None, tuple[Attempt | None, int]]:
    """The attempt at the largest scale at which all gradients are finite, or None, and the number of attempts.

    largest_gradient: that of the reference, from which the search starts. Gradients are proportional to the scale, so one finite attempt
    shows how far it can be raised; overflow inside an operation shows only in another attempt.
    """
    exponent = _exponent(largest_gradient)
    lowest, trials = exponent - _GIVEN_UP, 0
    best: Attempt | None = None
    finite, infinite = lowest, _LARGEST_EXPONENT + 1
    while lowest < exponent:
        trials += 1
        current = yield from attempt(2.0**exponent)
        if current.finite:
            best, finite = current, exponent
            exponent = min(exponent + _exponent(current.peaks.largest_fp16), infinite - 1)
        else:
            infinite, exponent = exponent, exponent - 1
        if exponent <= finite:
            break
    return best, trials


def _exponent(largest: float) -> int:
    """The largest power of two by which ``largest`` can be multiplied in fp16; 0 where it is 0."""
    return min(_LARGEST_EXPONENT, math.floor(math.log2(FP16_MAX / largest))) if largest > 0 else 0
