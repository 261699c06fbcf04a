"""Finds weights that one checkpoint stores twice in two forms: experts one by one and stacked, a fused matrix and its parts."""

from collections.abc import Generator, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from analyzers.checkpoints.checkpoint import Checkpoint
from analyzers.checkpoints.matching.choices import Chooser
from analyzers.checkpoints.matching.pairs import parameters
from analyzers.checkpoints.matching.probe import Reader
from analyzers.checkpoints.matching.sites import site
from analyzers.checkpoints.reading.spans import Span
from analyzers.checkpoints.reading.stream import Chunk, stream
from analyzers.checkpoints.tensor import Tensor

if TYPE_CHECKING:
    from analyzers.core.request import Progress


def relaid_copies(checkpoint: Checkpoint) -> Generator["Progress", None, dict[str, Tensor]]:
    """Compare tensors with those parts of other tensors that are the same weights by name; returns copy -> the part that it equals."""
    from analyzers.core.request import Progress  # local import: opening a checkpoint must not load pydantic

    located = [(tensor, site(tensor.name)) for tensor in parameters(checkpoint) if tensor.has_values]
    joint = [tensor for tensor, at in located if len(at.parts) > 1 or at.expert == -1]
    single = [tensor for tensor, at in located if len(at.parts) == 1 and at.expert != -1]
    if not joint or not single:
        return {}
    reader, copies = Reader(checkpoint), dict[str, Tensor]()
    chooser = Chooser([checkpoint.config], (reader, reader), lambda one, other: one.shape == other.shape)
    matches = [match for match in chooser.relaid(single, joint) if match.agree and match.base.dtype == match.tuned.dtype]
    spans = [Span((match.base, match.tuned), 0, match.base.elements) for match in matches]
    total = sum(span.nbytes for span in spans)
    with closing(stream([checkpoint, checkpoint], spans, _equal)) as steps:  # type: ignore[type-var]
        for step in steps:
            if step.span is not None and step.result:
                one, other = step.span.sides
                assert one is not None and other is not None
                copies[one.name] = other
            yield Progress(done=step.bytes_read, total=total, unit="bytes", note="comparing what is stored in two layouts")
    return copies


def _equal(span: Span, chunks: Iterator[Chunk]) -> bool:
    return all(bool((one == other).all()) for chunk in chunks for one, other in [chunk.sides] if one is not None and other is not None)
