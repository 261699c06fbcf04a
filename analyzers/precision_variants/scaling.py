"""fp16's loss scale: the largest power of two at which no gradient overflows, found by backward passes that end where one does."""

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from analyzers.precision_variants.headroom import FP16_MAX, Peaks
from analyzers.precision_variants.reference import Comparison

# Below what the reference's gradients would allow, in powers of two, the search is given up: it is not the scale that overflows.
_GIVEN_UP = 12
_LARGEST_EXPONENT = 40


@dataclass(slots=True)
class Attempt:
    """A backward pass at one scale. peaks: of the scaled gradients; finite: it went through, and nothing overflowed."""

    scale: float
    comparison: Comparison
    peaks: Peaks
    finite: bool


def largest_scale(
    attempt: Callable[[float], Generator[Any, None, Attempt]], largest_gradient: float
) -> Generator[Any, None, tuple[Attempt | None, int]]:
    """The attempt at the largest scale that stays finite, None if there is none, and how many attempts it took.

    largest_gradient: of the reference, where the search begins. Gradients are proportional to the scale, so that one finite attempt tells
    how far it can be raised; what happens between the tensors that are seen, only another attempt.
    """
    exponent = _exponent(largest_gradient)
    lowest, trials = exponent - _GIVEN_UP, 0
    best: Attempt | None = None
    reached, beyond = lowest, _LARGEST_EXPONENT + 1
    while lowest < exponent:
        trials += 1
        found = yield from attempt(2.0**exponent)
        if found.finite:
            best, reached = found, exponent
            exponent = min(exponent + _exponent(found.peaks.largest_fp16), beyond - 1)
        else:
            beyond, exponent = exponent, exponent - 1
        if exponent <= reached:
            break
    return best, trials


def _exponent(largest: float) -> int:
    """Of the largest power of two by which such a number can be multiplied; 0 for none."""
    return min(_LARGEST_EXPONENT, math.floor(math.log2(FP16_MAX / largest))) if largest > 0 else 0
