"""Says how models with adapters are made: BASE+ADAPTER names its base, so that weights need not show it."""

from analyzers.checkpoints import Checkpoint
from analyzers.formatting import listed

# Beginnings of `made`
BY_CONSTRUCTION = ("Made from ", "The base of ")


def made(model: Checkpoint, other: Checkpoint) -> str:
    """Begin a statement on a model that is another one with adapters, or the base of it, or has the same base; empty if it is neither."""
    (base, *mine), (same, *theirs) = ([(part.ref, part.commit, weight) for part, weight in side.parts] for side in (model, other))
    if base != same or mine == theirs:
        return ""
    if mine[: len(theirs)] == theirs:
        added = [ref if weight == 1 else f"{weight:.12g} times {ref}" for ref, _, weight in mine[len(theirs) :]]
        return f"Made from {other.ref} by merging {listed(added)} into it"
    if theirs[: len(mine)] == mine:
        return f"The base of {other.ref}"
    return f"Made from {base[0]}, as {other.ref} is, with other adapters or weights"
