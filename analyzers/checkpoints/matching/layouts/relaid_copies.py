"""Finds weights that one checkpoint stores twice in two layouts: single and stacked experts, a fused matrix and its parts."""

from collections.abc import Iterator
from contextlib import closing

from analyzers.checkpoints.checkpoint import Checkpoint
from analyzers.checkpoints.matching.layouts.attention_heads import head_lengths, head_rows
from analyzers.checkpoints.matching.layouts.match import Matcher
from analyzers.checkpoints.matching.layouts.probe import Reader
from analyzers.checkpoints.matching.layouts.sites import site
from analyzers.checkpoints.reading.spans import Span
from analyzers.checkpoints.reading.stream import Chunk, Step, stream
from analyzers.checkpoints.tensor import Tensor


class RelaidCopies:
    """Tensors that equal parts of other tensors, bit for bit. found: copy -> the part of another tensor, after `compare`."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.found: dict[str, Tensor] = {}
        self._checkpoint = checkpoint
        located = [
            (tensor, site(tensor.name))
            for tensor in checkpoint.tensors
            if not tensor.buffer and not tensor.holds_scales and tensor.has_values
        ]
        joint = [tensor for tensor, at in located if len(at.parts) > 1 or at.expert == -1]
        single = [tensor for tensor, at in located if len(at.parts) == 1 and at.expert != -1]
        self._spans: list[Span] = []
        if joint and single:
            reader = Reader(checkpoint)
            matcher = Matcher(
                head_lengths([checkpoint.config]),
                head_rows([checkpoint.config]),
                (reader, reader),
                lambda one, other: one.shape == other.shape,
            )
            matches = [match for match in matcher.relaid(single, joint) if match.agree and match.base.dtype == match.tuned.dtype]
            self._spans = [Span((match.base, match.tuned), 0, match.base.elements) for match in matches]

    def compare(self) -> Iterator[Step[bool]]:
        """Read both layouts of all candidates and fill ``found``."""

        def equal(span: Span, chunks: Iterator[Chunk]) -> bool:
            return all(
                bool((one == other).all()) for chunk in chunks for one, other in [chunk.sides] if one is not None and other is not None
            )

        with closing(stream([self._checkpoint, self._checkpoint], self._spans, equal)) as steps:  # type: ignore[type-var]
            for step in steps:
                if step.span is not None and step.result:
                    one, other = step.span.sides
                    assert one is not None and other is not None
                    self.found[one.name] = other
                yield step
