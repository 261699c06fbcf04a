"""Student's t, for intervals of means of few numbers."""

import math
from functools import lru_cache

_SHARE = 0.95
_HALVINGS = 60  # of an angle: more than the digits of a float


@lru_cache(maxsize=1024)
def student_t(freedom: int) -> float:
    """So many standard errors about a mean hold 95 % of cases: the t with P(|T| <= t) = 0.95, ``freedom`` degrees of freedom, 1 or more.

    Solved by halving the angle arctan(t / sqrt(freedom)), in which that probability is a finite sum for whole degrees of freedom
    (Abramowitz and Stegun, 26.7.3 and 26.7.4).
    """
    if freedom < 1:
        raise ValueError(f"Student's t has at least 1 degree of freedom, not {freedom}.")
    low, high = 0.0, math.pi / 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < _SHARE else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _within(angle: float, freedom: int) -> float:
    """P(|T| <= sqrt(freedom) tan(angle))."""
    odd, square = freedom % 2, math.cos(angle) ** 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for power in range(2 + odd, freedom + 1, 2):
        total += term
        term *= square * (power - 1) / power
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
