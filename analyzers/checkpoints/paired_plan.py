"""What a paired stream reads: everything or a sample, as spans of the groups of an alignment."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from analyzers import limits
from analyzers.checkpoints.align import Alignment, Group, PairedSpan
from analyzers.checkpoints.checkpoint import Checkpoint
from analyzers.checkpoints.decode import scale_reads
from analyzers.checkpoints.elements import memory_order, read_bytes
from analyzers.checkpoints.local import LocalRepository
from analyzers.checkpoints.sample import RUN, Block, IntArray, plan_sample
from analyzers.checkpoints.stream import in_file_order, whole_paired_spans, widest_bits
from analyzers.checkpoints.tensor import Tensor
from analyzers.errors import InvalidRequest

# Reads of each side, however many sides share the limit: with fewer, a sample would say nothing.
FEWEST_REQUESTS = 40

# A sampled block is read sparsely if the file's layout makes it cost more than this multiple of its bytes.
_COSTLY = 8


class PairedSample(NamedTuple):
    """What to read of all sides, and the population that it represents: `sample.Sample` for the groups of an alignment.

    spans: in the base's file order; strata: (groups,) the stratum of each; population: (strata,) elements of each, of the base.
    """

    spans: list[PairedSpan]
    strata: IntArray
    population: IntArray


@dataclass(frozen=True, slots=True)
class PairedPlan:
    """What will be read.

    exact: everything is, as one stratum; strata: (groups,) the stratum of each group; population: (strata,) elements of each,
    read or not; weights: (strata,) elements that one read element stands for, 0 where none is read; nbytes: of all sides together.
    """

    spans: list[PairedSpan]
    nbytes: int
    exact: bool
    strata: IntArray
    population: IntArray
    weights: Sequence[Fraction | int]

    @classmethod
    def of(cls, sides: Sequence[Checkpoint], alignment: Alignment, mode: str, budget: int, seed: int) -> "PairedPlan":
        """The same for the same arguments; mode: "quick" or "exact". Raises InvalidRequest for a budget too small."""
        elements = np.array([group.base.elements for group in alignment.groups], np.int64)
        if mode == "quick":
            sample = plan_paired_sample(alignment, budget, _requests(sides), seed)
            if not sample.spans:
                raise InvalidRequest("The budget is too small for a single pair of values; raise it.")
            read = np.zeros(len(sample.population), np.int64)
            for span in sample.spans:
                read[sample.strata[span.group]] += span.count
            if int(read.sum()) < int(elements.sum()):
                weights = [Fraction(int(n), int(r)) if r else Fraction(0) for n, r in zip(sample.population, read, strict=True)]
                return cls(sample.spans, alignment.nbytes(sample.spans), False, sample.strata, sample.population, weights)
        spans = whole_paired_spans(alignment)
        one = np.zeros(len(elements), np.int64)
        return cls(spans, alignment.nbytes(spans), True, one, elements.sum(keepdims=True), [1])


def _requests(sides: Sequence[Checkpoint]) -> int:
    """Reads that the plan may make of each side: all on the Hub share what two quick runs of one checkpoint may make."""
    remote = [side for side in sides if not isinstance(side.repository, LocalRepository)]
    local = [side.repository.range_requests for side in sides if isinstance(side.repository, LocalRepository)]
    shared = [2 * limits.RANGE_REQUESTS // len(remote) - 2 * max(len(side.files) for side in remote)] if remote else []
    return max(FEWEST_REQUESTS, min(local + shared))


def plan_paired_sample(alignment: Alignment, budget: int, requests: int, seed: int) -> PairedSample:
    """Plan what to read of each checkpoint with at most ``budget`` bytes and ``requests`` reads of any one of them.

    As `sample.plan_sample`, over the groups: the same elements of every side. Bytes are those of the widest side, including its
    scales. Views that all sides store alike are read in memory order. Groups whose blocks are scattered over the file of a side,
    such as a matrix that one side stores transposed, are read in short runs, as many as fit ``budget`` bytes; they form a
    stratum of their own. Raises InvalidRequest if the budget or the number of requests is less than 1.
    """
    groups = alignment.groups
    reads = 1 + max((scale_reads(side) for group in groups for side in group.sides if side is not None), default=0)
    left = budget
    if reads > 1:  # each block takes one or two more requests for its scales, and up to an eighth more bytes (NVFP4, the maximum)
        requests, left = max(1, requests // reads), max(1, budget * 8 // 9)
    sample = plan_sample([_as_planned(group) for group in groups], left, requests, seed)
    blocks, scattered = _within_reach(groups, sample.blocks, budget, seed)
    by_group: list[list[PairedSpan]] = [[] for _ in groups]
    for block in sorted(blocks, key=lambda block: (block.tensor, block.start)):
        by_group[block.tensor].append(PairedSpan(block.tensor, block.start, block.count, _stored_alike(groups[block.tensor])))
    strata = np.where(np.isin(np.arange(len(groups)), list(scattered)), len(sample.population), sample.strata)
    _, strata = np.unique(strata, return_inverse=True)
    population = np.zeros(int(strata.max(initial=-1)) + 1, np.int64)
    np.add.at(population, strata, [group.base.elements for group in groups])
    return PairedSample([span for number in in_file_order(alignment) for span in by_group[number]], strata.astype(np.int64), population)


def _within_reach(groups: Sequence[Group], blocks: Sequence[Block], budget: int, seed: int) -> tuple[list[Block], set[int]]:
    """The blocks to read, and which groups are scattered: those get a short part of each block, as many as fit ``budget`` bytes."""
    scattered = {
        block.tensor
        for block in blocks
        if _read_bytes(groups[block.tensor], block) > _COSTLY * max(1, block.count * widest_bits(groups[block.tensor].sides) // 8)
    }
    kept = [block for block in blocks if block.tensor not in scattered]
    costly = [block for block in blocks if block.tensor in scattered]
    rng = np.random.Generator(np.random.PCG64(seed))
    for number in rng.permutation(len(costly)).tolist():
        whole = costly[number]
        skipped = int(rng.integers(-(-whole.count // RUN))) * RUN
        block = replace(whole, start=whole.start + skipped, count=min(RUN, whole.count - skipped))
        nbytes = _read_bytes(groups[block.tensor], block)
        if nbytes <= budget:
            kept.append(block)
            budget -= nbytes
    return kept, scattered


def _as_planned(group: Group) -> Tensor:
    """The side with the most bits per element, preferring the base, with the shape and role of the base."""
    widest = max((side for side in group.sides if side is not None), key=lambda side: side.bits)
    return group.base if widest is group.base else replace(widest, shape=group.base.shape, role=group.base.role)


def _stored_alike(group: Group) -> bool:
    """Whether all sides are views with the same layout, so that the same memory position holds the same element."""
    kinds = {(side.shape, side.strides, side.scale is None) for side in group.sides if side is not None}
    return kinds == {(group.base.shape, group.base.strides, True)} and group.base.strides is not None


def _read_bytes(group: Group, block: Block) -> int:
    """Bytes read for a block, of the side that takes most."""
    alike = _stored_alike(group)
    return max(
        read_bytes(memory_order(side) if alike else side, block.start, max(0, min(block.count, side.elements - block.start)))
        for side in group.sides
        if side is not None
    )
