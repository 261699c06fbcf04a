"""Reads checkpoints once, tensor by tensor side by side, and counts what compares them."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from time import perf_counter
from typing import Any

from analyzers.checkpoints import (
    Access,
    Checkpoint,
    Chunk,
    Matching,
    Plan,
    Span,
    check_side,
    open_sides,
    side_coverage,
    stream,
)
from analyzers.comparison.counting import Counted, Counter, Task
from analyzers.comparison.table import Table
from analyzers.core.coverage import Coverage
from analyzers.core.errors import InvalidRequest
from analyzers.core.report import check_size
from analyzers.core.request import Progress, WeightsRequest


class Pass:
    """One pass over ``sides``, whose tensors are matched with those of the first one.

    names: of the sides, in errors; largest: refuse to read more bytes than this; device: that holds them; by_values: whether forms are
    tried by values; each: whether every other side must share values with the first one, else one must; watch: called with each span and
    chunk. nbytes, requests, seconds: what was read so far.
    """

    def __init__(
        self,
        request: WeightsRequest,
        sides: Sequence[Checkpoint],
        names: Sequence[str],
        matching: Matching,
        task: Task,
        *,
        largest: int | None = None,
        device: str = "",
        by_values: bool = True,
        each: bool = False,
        watch: Any = None,
    ) -> None:
        self.sides, self.names = sides, names
        self._request, self._device, self._watch = request, device, watch
        self.alignment = matching.align(sides, names, request.mode == "exact", by_values)
        groups = self.alignment.groups
        lacking = [at for at in range(1, len(sides)) if not any(group.sides[at] is not None and group.base.elements for group in groups)]
        if lacking and each and len(sides) > 2:
            raise InvalidRequest(f"{names[lacking[0]]}: {nothing_shared([sides[0], sides[lacking[0]]])}")
        if not groups or (lacking and each):
            raise InvalidRequest(nothing_shared(sides))
        left = max(1, matching.remaining_budget(request.budget, sides)) if by_values else request.budget
        self.plan = Plan.of(sides, self.alignment.sides, request.mode, left, request.seed, bool(device))
        check_size(self.plan.nbytes, largest)
        self._counter = Counter(task, self.alignment.groups, self.plan)
        self.table = Table(self.alignment.groups, self.plan, self._counter)
        self.nbytes, self.requests, self.seconds = 0, 0, 0.0

    def read(self) -> Iterator[Progress]:
        """Read and count; yields progress."""
        total, start, note = self.plan.nbytes, perf_counter(), "reading weights"
        yield Progress(done=0, total=total, unit="bytes", note=note)
        work = self._counter if self._watch is None else self._watched
        norms = self._counter.norms
        if norms.spans:
            for each in stream(self.sides, norms.spans, norms.read, self.names):
                if each.span is not None and each.result is not None:
                    norms.add(each.span, each.result)
                yield Progress(done=0, total=total, unit="bytes", note=note)
        with closing(stream(self.sides, self.plan.spans, work, self.names, self._device, self._counter.task.device)) as steps:  # type: ignore[type-var]
            for step in steps:
                if step.span is not None and step.result is not None:
                    self.table.add(step.span, step.result)
                self.nbytes, self.requests, self.seconds = step.bytes_read, step.requests, perf_counter() - start
                yield Progress(done=self.nbytes, total=max(total, self.nbytes), unit="bytes", note=note)

    def _watched(self, span: Span, chunks: Iterator[Chunk]) -> Counted:
        def seen() -> Iterator[Chunk]:
            for chunk in chunks:
                self._watch(span, chunk)
                yield chunk

        return self._counter(span, seen())

    def coverage(self, side: int, by: Sequence[int]) -> Coverage:
        """Return the coverage of a side by others together. A side other than the first is matched with those through the first one."""
        filters = self._request.include, self._request.exclude
        columns = [side - 1] if side else sorted({other - 1 for other in by if other})
        return side_coverage(self.sides[side], self.alignment, side, columns, *filters)


def open_models(
    references: Sequence[str], names: Sequence[str], request: WeightsRequest, access: Access, stack: ExitStack, into_first: bool = False
) -> Generator[Progress, None, list[Checkpoint]]:
    """Open checkpoints until ``stack`` is closed, and check that they have weights to compare. names: in errors."""
    sides = yield from open_sides(references, names, access, request.subfolder, into_first=into_first)
    for side, name in zip(sides, names, strict=True):
        stack.enter_context(side)
        check_side(side, name, bool(request.include))
    return sides


def nothing_shared(sides: Sequence[Checkpoint]) -> str:
    """Say that nothing can be compared."""
    others = sides[1].ref if len(sides) == 2 else f"the other {len(sides) - 1} models"
    return f"There is nothing to compare: no tensor with values of {others} has the name and shape of one of {sides[0].ref}."


def is_quantized(side: Checkpoint) -> bool:
    """Return whether a checkpoint has quantized tensors."""
    return any(tensor.stored is not None for tensor in side.tensors)


def every_copy(sides: Sequence[Checkpoint]) -> list[tuple[int, int]]:
    """Return every side with quantized tensors, with each other side."""
    quantized = [at for at, side in enumerate(sides) if is_quantized(side)]
    return [(i, j) for i in quantized for j in range(len(sides)) if i != j]
