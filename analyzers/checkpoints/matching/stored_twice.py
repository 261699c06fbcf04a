"""Finds weights that one checkpoint stores twice in two forms: single and stacked experts, a fused matrix and its parts."""

from collections.abc import Iterator
from contextlib import closing

from analyzers.checkpoints.checkpoint import Checkpoint
from analyzers.checkpoints.matching.choices import Chooser
from analyzers.checkpoints.matching.pairs import fit, parameters
from analyzers.checkpoints.matching.probe import Reader
from analyzers.checkpoints.matching.sites import site
from analyzers.checkpoints.reading.spans import Span
from analyzers.checkpoints.reading.stream import Chunk, Step, stream
from analyzers.checkpoints.tensor import Tensor


class RelaidCopies:
    """Tensors that equal parts of other tensors, bit for bit. found: copy -> the part of another tensor, after `compare`."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.found: dict[str, Tensor] = {}
        self._checkpoint = checkpoint
        sides: tuple[list[Tensor], list[Tensor]] = ([], [])  # of one part, and of several
        for tensor in parameters(checkpoint):
            at = site(tensor.name)
            if tensor.has_values:
                sides[len(at.parts) > 1 or at.expert == -1].append(tensor)
        reader = Reader(checkpoint)
        matches = Chooser([checkpoint.config], (reader, reader), fit).relaid(*sides) if all(sides) else ()
        alike = [match for match in matches if match.agree and match.base.dtype == match.tuned.dtype]
        self._spans = [Span((match.base, match.tuned), 0, match.base.elements) for match in alike]

    def compare(self) -> Iterator[Step[bool]]:
        """Read both forms of all candidates and fill ``found``."""

        def equal(span: Span, chunks: Iterator[Chunk]) -> bool:
            pairs = (chunk.sides for chunk in chunks)
            return all(bool((one == other).all()) for one, other in pairs if one is not None and other is not None)

        with closing(stream([self._checkpoint, self._checkpoint], self._spans, equal)) as steps:  # type: ignore[type-var]
            for step in steps:
                if step.span is not None and step.result:
                    one, other = step.span.sides
                    assert one is not None and other is not None
                    self.found[one.name] = other
                yield step
