"""Tells routing that flipped from other weights: a flip changes nothing before the first token that rounding may send to other experts."""

from typing import Any

import numpy as np

from analyzers.precision_variants.engine.causes import OTHER_WEIGHTS
from analyzers.precision_variants.engine.comparison import BAND, Flags, Floats, Units
from analyzers.precision_variants.engine.measurements import Cause

FRAGILE = 0.25  # A run that sends a larger share of the tokens to other experts says nothing about which of them rounding may move.
_CONCENTRATED = 2.0  # So much larger are differences on such tokens if flips make them.
_CONTEXT = 1.5  # Flips reach the other tokens through attention: their typical difference stays below so many times bf16's.
_TAIL = 0.99  # Differences count up to this quantile of bf16's: a flip that none of our runs shows is rare and large.

_UNDECIDED = [
    Cause(kind="routing", what="routing that flipped", explains="elimination", told_apart=False),
    OTHER_WEIGHTS.model_copy(update={"told_apart": False}),
]


def told_apart(e: Floats, b: Floats, fragile: Flags | None, before: Floats, units: Units) -> list[Cause]:
    """Return routing or other weights as the cause, or both if these tokens do not tell. fragile (n,): tokens that our own runs send to
    other experts than fp32, None if they move too many; before (n,): the number of them in the sequence up to each token.
    """
    if fragile is None:
        return _UNDECIDED
    known: Any = np.isfinite(e)
    first, later = known & (before == 0), known & (before > 0) & ~fragile
    value, low, high = _early(e, b, first, units)
    if low is not None and low > BAND:
        return [OTHER_WEIGHTS]
    if value is None or high is None or high > BAND or not later.any() or not fragile[known].any():
        return _UNDECIDED
    concentrated = float(np.abs(e[known & fragile]).mean() / np.abs(e[known & ~fragile]).mean())
    typical = float(np.median(np.abs(e[later])) / np.median(np.abs(b[later])))
    if concentrated < _CONCENTRATED or typical > _CONTEXT:
        return _UNDECIDED
    what = (
        f"other experts: differences are {value:.3g} times bf16's before the first token that our own runs send to other experts than "
        f"fp32, and {concentrated:.2g} times as large on such tokens as on others"
    )
    return [Cause(kind="routing", what=what, explains="all")]


def _early(e: Floats, b: Floats, first: Flags, units: Units) -> tuple[float | None, float | None, float | None]:
    """Return mean |e| / mean |b| of the first tokens with its interval, both without their tails."""
    if not first.any():
        return None, None, None
    most = np.quantile(np.abs(b[first]), _TAIL)
    return units.quotient(np.minimum(np.abs(e), most), np.minimum(np.abs(b), most), first)
