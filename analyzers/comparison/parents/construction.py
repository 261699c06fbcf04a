"""Tells how models with adapters are made: BASE+ADAPTER names its base, so that weights need not show it."""

from analyzers.checkpoints import Checkpoint
from analyzers.comparison.parents.report import Construction


def made(model: Checkpoint, other: Checkpoint) -> Construction | None:
    """Return how a model is made if it is another one with adapters, or the base of it, or has the same base; None if it is neither."""
    (base, *mine), (same, *theirs) = ([(part.ref, part.commit, weight) for part, weight in side.parts] for side in (model, other))
    if base != same or mine == theirs:
        return None
    if mine[: len(theirs)] == theirs:
        added = [ref if weight == 1 else f"{weight:.12g}*{ref}" for ref, _, weight in mine[len(theirs) :]]
        return Construction(kind="merged", ref=other.ref, adapters=tuple(added))
    return Construction(kind="base" if theirs[: len(mine)] == mine else "sibling", ref=other.ref)
