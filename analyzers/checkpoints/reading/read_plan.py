"""Plans what a stream reads: everything, or in quick mode a sample, of one checkpoint or of the same tensors of several."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from analyzers.checkpoints.checkpoint import Checkpoint
from analyzers.checkpoints.elements import memory_order, read_bytes
from analyzers.checkpoints.local import is_local
from analyzers.checkpoints.reading.sample import RUN, Block, IntArray, plan_sample
from analyzers.checkpoints.reading.spans import Sides, Span, file_order, first, whole_spans
from analyzers.checkpoints.tensor import Tensor
from analyzers.checkpoints.views import View
from analyzers.core import limits
from analyzers.core.errors import InvalidRequest

# Fewest reads of each of several checkpoints that share the limit: with fewer, a sample would say nothing.
FEWEST_REQUESTS = 40

# A sampled block is read sparsely if the file's layout makes reading it cost more than this multiple of its bytes; then in tiles of so many
# values, of so many rows.
_COSTLY = 8
_TILE, _HEIGHTS = 256, (4, 8, 16, 32)


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
        transposed, are read in tiles, as many as fit ``budget`` bytes; they form a stratum of their own. Raises InvalidRequest if the
        budget or the number of requests is less than 1.
        """
        left, number = budget, requests
        while True:
            sample = plan_sample([_as_planned(sides) for sides in groups], left, number, seed)
            spans, scattered = _within_reach(groups, sample.blocks, left, seed)
            nbytes, reads = _most(spans, _read_bytes), _most(spans, _reads)
            if (nbytes <= budget or left == 1) and (reads <= requests or number == 1):
                break
            if reads > requests and number > 1:
                number = max(1, min(number * requests // reads, number * 15 // 16))
            else:  # scales take bytes too
                left = max(1, min(left * budget // nbytes, left * 15 // 16))
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


def _most(spans: Sequence[Span], cost: Callable[[Tensor, Span], int]) -> int:
    """Return the cost of the side that takes most."""
    sides = zip(*([0 if side is None else cost(side, span) for side in span.sides] for span in spans), strict=True)
    return max(map(sum, sides), default=0)


def _read_bytes(side: Tensor, span: Span) -> int:
    return read_bytes(side, span.start, max(0, min(span.count, side.elements - span.start)))


def _reads(side: Tensor, span: Span) -> int:
    return 1 if side.stored is None else side.stored.reads


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


def _within_reach(groups: Sequence[Sides], blocks: Sequence[Block], budget: int, seed: int) -> tuple[list[Span], set[int]]:
    """Return what to read of blocks, and the scattered groups, of whose blocks tiles are read, as many as fit ``budget`` bytes."""
    spans = [_span(groups[block.tensor], block) for block in blocks]
    costs = [_most([span], _read_bytes) for span in spans]
    scattered = {
        block.tensor
        for block, cost in zip(blocks, costs, strict=True)
        if cost > _COSTLY * max(1, block.count * _stored_bits(groups[block.tensor]) // 8)
    }
    reachable = dict.fromkeys(span for block, span in zip(blocks, spans, strict=True) if block.tensor not in scattered)
    costly = [block for block in blocks if block.tensor in scattered]
    rng = np.random.Generator(np.random.PCG64(seed))
    for number in rng.permutation(len(costly)).tolist():
        block = costly[number]
        tiles = list(_tiles(groups[block.tensor], block.start + int(rng.integers(block.count))))
        nbytes, at = min((_most([tile], _read_bytes), at) for at, tile in enumerate(tiles))
        if nbytes > budget:
            break  # not those that follow, which would be more often of matrices with short rows
        budget -= nbytes
        reachable[tiles[at]] = None
    return list(reachable), scattered


def _tiles(sides: Sides, element: int) -> Iterator[Span]:
    """Yield tiles of `_TILE` values around an element: a few columns of a few rows, which are near each other in either orientation.

    Of sides of different shapes only parts of rows.
    """
    shape = first(sides).shape
    column = element % shape[-1]
    if len(shape) < 2 or len({side.shape for side in sides if side is not None}) > 1:
        yield Span(sides, element - column % RUN, min(RUN, shape[-1] - column // RUN * RUN))
        return
    rows, columns = shape[-2:]
    stack, row = divmod(element // columns, rows)
    for height in _HEIGHTS:
        height, width = min(height, rows), min(_TILE // height, columns)
        top, left = min(row // height * height, rows - height), min(column // width * width, columns - width)
        cut = tuple(side and _cut(side, stack, (top, height), (left, width)) for side in sides)
        yield Span(cut, 0, height * width, left)


def _cut(side: Tensor, stack: int, rows: tuple[int, int], columns: tuple[int, int]) -> Tensor:
    """Return some rows and columns of a matrix, of number ``stack`` if there are several. rows, columns: the first, and how many."""
    view = View.of(side)
    for length in reversed(view.shape[:-2]):
        stack, index = divmod(stack, length)
        view = view.pick(len(view.shape) - 3, index)
    return view.cut(0, rows[0], sum(rows)).cut(1, columns[0], sum(columns)).part_of(side, "")


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
