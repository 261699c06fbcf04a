"""Plans what a stream reads: everything, or in quick mode a sample, of one checkpoint or of the same tensors of several."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from analyzers.checkpoints.checkpoint import Checkpoint
from analyzers.checkpoints.elements import memory_order, read_bytes
from analyzers.checkpoints.local import is_local
from analyzers.checkpoints.reading.sample import RUN, Block, IntArray, plan_sample
from analyzers.checkpoints.reading.spans import Sides, Span, file_order, first, whole_spans
from analyzers.checkpoints.tensor import Tensor
from analyzers.core import limits
from analyzers.core.errors import InvalidRequest

# Fewest reads of each of several checkpoints that share the limit: with fewer, a sample would say nothing.
FEWEST_REQUESTS = 40

# A sampled block is read sparsely if the file's layout makes reading it cost more than this multiple of its bytes.
_COSTLY = 8


@dataclass(frozen=True, slots=True)
class Plan:
    """The elements that will be read.

    spans: in the first checkpoint's file order; nbytes: of all sides together; exact: everything is read, as one stratum;
    strata: name of each tensor in the first checkpoint -> its stratum; population: (strata,) elements of each in the first
    checkpoint, read or not.
    """

    spans: list[Span]
    nbytes: int
    exact: bool
    strata: dict[str, int]
    population: IntArray

    @classmethod
    def of(
        cls, checkpoints: Sequence[Checkpoint], groups: Sequence[Sides], mode: str, budget: int, seed: int, undivided: bool = False
    ) -> "Plan":
        """Plan what to read; the same arguments give the same plan on any machine.

        groups: the tensors to read, each with one side per checkpoint.

        mode: "quick" or "exact"; undivided: a span for each tensor, if everything is read. Raises InvalidRequest for a budget too small.
        """
        if mode == "quick":
            plan = cls.sampled(groups, budget, _requests(checkpoints), seed)
            if not plan.spans:
                raise InvalidRequest("The budget is too small for a single value; raise it.")
            if not plan.exact:
                return plan
        spans, elements = whole_spans(groups, undivided), sum(first(sides).elements for sides in groups)
        return cls(spans, _nbytes(spans), True, {first(sides).name: 0 for sides in groups}, np.array([elements], np.int64))

    @classmethod
    def sampled(cls, groups: Sequence[Sides], budget: int, requests: int, seed: int) -> "Plan":
        """Draw a sample of at most ``budget`` bytes and ``requests`` reads of each checkpoint (`sample.plan_sample`).

        The same elements are read from every side. Bytes are counted on the widest side, including its scales. Views that all sides store
        alike are read in memory order. Groups whose blocks are scattered over the file of a side, such as a matrix that one side stores
        transposed, are read in short runs, as many as fit ``budget`` bytes; they form a stratum of their own. Raises InvalidRequest if the
        budget or the number of requests is less than 1.
        """
        reads = max((side.stored.reads for sides in groups for side in sides if side is not None and side.stored is not None), default=1)
        left = budget
        while True:
            sample = plan_sample([_as_planned(sides) for sides in groups], left, max(1, requests // reads), seed)
            blocks, scattered = _within_reach(groups, sample.blocks, left, seed)
            spans = [_span(groups[block.tensor], block) for block in blocks]
            taken = _most_bytes(spans) if reads > 1 and left > 1 else 0  # scales take bytes too
            if taken <= budget:
                break
            left = max(1, min(left * budget // taken, left * 15 // 16))
        numbers = np.where(np.isin(np.arange(len(groups)), list(scattered)), len(sample.population), sample.strata)
        _, numbers = np.unique(numbers, return_inverse=True)
        population = np.zeros(int(numbers.max(initial=-1)) + 1, np.int64)
        np.add.at(population, numbers, [first(sides).elements for sides in groups])
        strata = {first(sides).name: int(number) for sides, number in zip(groups, numbers, strict=True)}
        spans.sort(key=lambda span: (*file_order(span.sides), span.start))
        exact = sum(span.count for span in spans) == int(population.sum())
        return cls(spans, _nbytes(spans), exact, strata, population)

    def weights(self) -> list[float]:
        """Return the (strata,) number of elements that one read element stands for, 0 if none is read."""
        if self.exact:
            return [1.0]
        read = np.zeros(len(self.population), np.int64)
        for span in self.spans:
            read[self.strata[span.tensor.name]] += span.count
        return [n / r if r else 0.0 for n, r in zip(self.population.tolist(), read.tolist(), strict=True)]


def _nbytes(spans: Sequence[Span]) -> int:
    return sum(span.nbytes for span in spans)


def _most_bytes(spans: Sequence[Span]) -> int:
    """Return the bytes to read from the side that takes most."""
    sides = zip(*([span.bytes_of(side) for side in span.sides] for span in spans), strict=True)
    return max(map(sum, sides), default=0)


def _requests(checkpoints: Sequence[Checkpoint]) -> int:
    """Return the number of reads that a sample may make of each checkpoint: several on the Hub share those of two quick runs."""
    if len(checkpoints) == 1:
        (one,) = checkpoints
        return max(1, one.repository.range_requests - 2 * len(one.files))  # headers take one or two reads each
    remote = [side for side in checkpoints if not is_local(side.repository)]
    local = [side.repository.range_requests for side in checkpoints if is_local(side.repository)]
    shared = [2 * limits.RANGE_REQUESTS // len(remote) - 2 * max(len(side.files) for side in remote)] if remote else []
    merged = [side.repository.range_requests for side in checkpoints if len(side.parts) > 1]  # each block of them costs a matrix
    return max(FEWEST_REQUESTS, min(local + shared + merged))


def _within_reach(groups: Sequence[Sides], blocks: Sequence[Block], budget: int, seed: int) -> tuple[list[Block], set[int]]:
    """Return the blocks to read and the scattered groups, which get short parts of their blocks, as many as fit ``budget`` bytes."""
    scattered = {
        block.tensor
        for block in blocks
        if _read_bytes(groups[block.tensor], block) > _COSTLY * max(1, block.count * _stored_bits(groups[block.tensor]) // 8)
    }
    reachable = [block for block in blocks if block.tensor not in scattered]
    costly = [block for block in blocks if block.tensor in scattered]
    rng = np.random.Generator(np.random.PCG64(seed))
    for number in rng.permutation(len(costly)).tolist():
        whole = costly[number]
        skipped = int(rng.integers(-(-whole.count // RUN))) * RUN
        block = replace(whole, start=whole.start + skipped, count=min(RUN, whole.count - skipped))
        nbytes = _read_bytes(groups[block.tensor], block)
        if nbytes <= budget:
            reachable.append(block)
            budget -= nbytes
    return reachable, scattered


def _as_planned(sides: Sides) -> Tensor:
    """Return the side with the most bits per element, preferring the first, with the shape and role of the first."""
    base, widest = first(sides), max((side for side in sides if side is not None), key=lambda side: side.stored_bits)
    return base if widest is base else replace(widest, shape=base.shape, role=base.role)


def _span(sides: Sides, block: Block) -> Span:
    """Return a block of a sample as it is read: in memory order if all sides are views with the same layout."""
    base = first(sides)
    if len(sides) == 1:
        return Span.of(base, block.start, block.count)
    alike = {(side.shape, side.strides) for side in sides if side is not None} == {(base.shape, base.strides)}
    if alike and base.strides is not None:
        sides = tuple(side and memory_order(side) for side in sides)
    return Span(sides, block.start, block.count)


def _stored_bits(sides: Sides) -> int:
    return max(side.stored_bits for side in sides if side is not None)


def _read_bytes(sides: Sides, block: Block) -> int:
    """Return the bytes read for a block of the side that takes most."""
    return max(
        read_bytes(side, block.start, max(0, min(block.count, side.elements - block.start)))
        for side in _span(sides, block).sides
        if side is not None
    )
