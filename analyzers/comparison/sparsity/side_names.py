"""Names for the sides of a comparison, and the check that the base has something to compare with each tuned checkpoint."""

from collections.abc import Sequence

from analyzers.checkpoints import Alignment, Checkpoint, quoted
from analyzers.core.errors import InvalidRequest
from analyzers.core.terminal import plural


def side_names(tuned: int) -> list[str]:
    """Return the names of the base and of each of ``tuned`` checkpoints in errors and notes."""
    return ["Base", "Tuned"] if tuned == 1 else ["Base", *(f"Tuned {number} of {tuned}" for number in range(1, tuned + 1))]


def check_alignment(sides: Sequence[Checkpoint], names: Sequence[str], alignment: Alignment) -> None:
    """Raise InvalidRequest if a tuned checkpoint has no value to compare with one of the base's, saying what differs."""
    for number, tuned in enumerate(sides[1:]):
        matched = [after for group in alignment.groups if (after := group.tuned[number]) is not None]
        said = ""
        if not matched:
            said = _what_differs(sides[0], tuned)
        elif not any(tensor.elements for tensor in matched):
            said = f"There is nothing to compare: {plural(len(matched), 'tensor')} of both, without a value."
        if said:
            raise InvalidRequest(said if len(names) == 2 else f"{names[1 + number]}: {said}")


def _what_differs(base: Checkpoint, tuned: Checkpoint) -> str:
    return (
        f"There is nothing to compare: no tensor of {tuned.ref} has the name and shape of one of {base.ref}. "
        f"The base has {_described(base)}; the tuned checkpoint has {_described(tuned)}."
    )


def _described(checkpoint: Checkpoint) -> str:
    kind = (checkpoint.config or {}).get("model_type")
    named = f" ({quoted(kind, 40)})" if isinstance(kind, str) else ""
    return f"{plural(len(checkpoint.tensors), 'tensor')}, {quoted(checkpoint.tensors[0].name)} first{named}"
