"""Excludes routing that flipped as the cause: a flip changes nothing before the first token that rounding may send to other experts."""

from typing import Any

import numpy as np

from analyzers.precision_variants.engine.causes import OTHER_WEIGHTS
from analyzers.precision_variants.engine.comparison import BAND, Floats, Units
from analyzers.precision_variants.engine.measurements import Cause

FRAGILE = 0.25  # A run that sends a larger share of the tokens to other experts says nothing about which of them rounding may move.
_TAIL = 0.99  # Differences count up to this quantile of bf16's: a flip that none of our runs shows is rare and large.

_UNDECIDED = [
    Cause(cause="routing", explains="elimination", told_apart=False),
    OTHER_WEIGHTS.model_copy(update={"told_apart": False}),
]


def told_apart(e: Floats, b: Floats, before: Floats | None, units: Units) -> list[Cause]:
    """Return other weights as the cause, and routing too unless these tokens exclude it: a fault that grows with the position looks like
    flips, so that routing is never the only one.

    before (n,): the number of tokens in the sequence, up to each, that our own runs send to other experts than fp32; None if these are too
    many to tell.
    """
    first: Any = np.isfinite(e) & (before == 0)
    if before is None or not first.any():
        return _UNDECIDED
    most = np.quantile(np.abs(b[first]), _TAIL)
    _, low, _ = units.quotient(np.minimum(np.abs(e), most), np.minimum(np.abs(b), most), first)
    return [OTHER_WEIGHTS] if low is not None and low > BAND else _UNDECIDED
