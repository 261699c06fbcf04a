"""Matches checkpoints that several analyses compare: what is read of each to match it is read once."""

from collections.abc import Mapping, Sequence

from analyzers.checkpoints.checkpoint import Checkpoint
from analyzers.checkpoints.matching.align import Alignment, align
from analyzers.checkpoints.matching.probe import Reader, remaining_budget
from analyzers.checkpoints.matching.tied_heads import repeated


class Matching:
    """Alignments of some checkpoints. include, exclude: of the visitor, as in `align`."""

    def __init__(self, include: str | None, exclude: str | None) -> None:
        self._include, self._exclude = include, exclude
        self._readers: dict[int, Reader] = {}  # by the identity of their checkpoints, which they hold
        self._repeats: dict[tuple[int, bool], Mapping[str, bool]] = {}
        self._found: dict[tuple[tuple[int, ...], bool, bool], Alignment] = {}

    def align(self, sides: Sequence[Checkpoint], names: Sequence[str], whole: bool, by_values: bool = True) -> Alignment:
        """Align checkpoints with the first one. names: of the sides, for errors.

        whole: verify copies of the embedding on all elements, not on a sample; by_values: whether values decide between forms.
        """
        readers = [self._readers.setdefault(id(side), Reader(side, name)) for side, name in zip(sides, names, strict=True)]
        key = tuple(map(id, sides)), whole, by_values
        if key not in self._found:
            for side in sides:
                if (id(side), whole) not in self._repeats:
                    self._repeats[id(side), whole] = repeated(side, whole)
            repeats = [self._repeats[id(side), whole] for side in sides]
            self._found[key] = align(sides[0], sides[1:], self._include, self._exclude, repeats, readers if by_values else ())
        return self._found[key]

    def remaining_budget(self, budget: int, sides: Sequence[Checkpoint]) -> int:
        """Return what a sample of checkpoints may still read after matching (`probe.remaining_budget`)."""
        return remaining_budget(budget, [reader for side in sides if (reader := self._readers.get(id(side))) is not None])
