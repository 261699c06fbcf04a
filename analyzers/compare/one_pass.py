"""Counts one pass over a model and its candidates for several analyses: parents, parents with the two exchanged, and update sparsity."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from time import perf_counter

from analyzers.checkpoints import Checkpoint, Chunk, Span, stream
from analyzers.core.request import Progress
from analyzers.parents.analyze import Pass, Search
from analyzers.parents.count import Counted as Related
from analyzers.parents.count import MutualCounter
from analyzers.update_sparsity.analyze import Comparison
from analyzers.update_sparsity.count import Counted as Changed


@dataclass(slots=True)
class OnePass:
    """A pass over ``sides``, planned by ``forward``, which explains the first one by the others.

    backward: explains the second of two sides by the first; comparison: of the sides numbered ``order``. All are planned alike. nbytes,
    seconds: that it read and took.
    """

    sides: Sequence[Checkpoint]
    names: Sequence[str]
    forward: tuple[Search, Pass]
    backward: tuple[Search, Pass] | None
    comparison: Comparison | None
    order: tuple[int, ...]
    nbytes: int = 0
    seconds: float = 0.0

    def count(self) -> Iterator[Progress]:
        """Read and count; yields progress."""
        planned, exchanged = self.forward[1], self.backward[1] if self.backward is not None else None
        counter = planned.counter if exchanged is None else MutualCounter(planned.counter, exchanged.counter)

        def work(span: Span, chunks: Iterator[Chunk]) -> tuple[list[Related], Changed | None]:
            related = counter.begin(span)
            changed = self.comparison.begin(_reordered(span, self.order)) if self.comparison is not None else None
            for chunk in chunks:
                related.add(chunk)
                if changed is not None:
                    changed.add(Chunk(chunk.start, tuple(chunk.sides[i] for i in self.order)))
            return related.take(), changed.take() if changed is not None else None

        requests = 0
        reading = perf_counter()
        with closing(stream(self.sides, planned.plan.spans, work, self.names)) as steps:  # type: ignore[type-var]
            for step in steps:
                if step.span is not None and step.result is not None:
                    self._add(step.span, *step.result)
                self.nbytes, requests = step.bytes_read, step.requests
                yield Progress(done=self.nbytes, total=max(planned.plan.nbytes, self.nbytes), unit="bytes", note="reading weights")
        if isinstance(counter, MutualCounter):
            counter.settle()
        self.seconds = perf_counter() - reading
        for each in (self.forward[0], self.backward[0] if self.backward is not None else None, self.comparison):
            if each is not None:
                each.add_read(self.nbytes, requests, self.seconds)

    def _add(self, span: Span, related: Sequence[Related], changed: Changed | None) -> None:
        self.forward[1].collector.add(span, related[0])
        if self.backward is not None:
            self.backward[1].collector.add(_reordered(span, (1, 0)), related[1])
        if self.comparison is not None and changed is not None:
            self.comparison.add(_reordered(span, self.order), changed)


def _reordered(span: Span, order: Sequence[int]) -> Span:
    return Span(tuple(span.sides[i] for i in order), span.start, span.count)
