"""Plans which elements quick mode reads, seeded, within a budget of bytes and range requests.

Tensors are split into cells, each small enough for one request. Within a stratum every cell has the same probability of
being drawn, so counts over the drawn cells, divided by the elements drawn, estimate the stratum without bias.
Offsets are in elements: one plan serves every checkpoint with the same shapes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analyzers.checkpoints.tensor import Tensor
from analyzers.core.errors import InvalidRequest

IntArray = npt.NDArray[np.int64]

SMALLEST_BLOCK = 4 << 10  # bytes; below this the overhead of a request outweighs its data
LARGEST_BLOCK = 1 << 20  # bytes; above this a second block elsewhere is more informative than a longer block
RUN = 128  # elements; blocks inside a row start at multiples of this, as scale blocks do
STRATUM_BLOCKS = 8  # fewest blocks of a separate stratum


@dataclass(frozen=True, slots=True)
class Block:
    """``count`` consecutive elements of tensor number ``tensor`` from element ``start`` on."""

    tensor: int
    start: int
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """The blocks to read, and the population that they represent.

    blocks: sorted by tensor and start, disjoint. strata: (tensors,) the stratum of each tensor.
    population: (strata,) elements of each stratum, read or not; a stratum whose elements are all read is known exactly.
    """

    blocks: list[Block]
    strata: IntArray
    population: IntArray


@dataclass(frozen=True, slots=True)
class _Frame:
    """Per-tensor inputs of the plan; every array is (tensors,). Units are elements, except ``bits`` per element and ``nbytes``."""

    elements: IntArray
    row: IntArray
    bits: IntArray
    nbytes: IntArray
    vector: npt.NDArray[np.bool_]
    role: IntArray


@dataclass(frozen=True, slots=True)
class _Cells:
    """The division of tensors into cells; every array is (tensors,).

    Each ``line`` elements are split separately into cells of ``length``.
    """

    line: IntArray
    length: IntArray
    per_line: IntArray
    number: IntArray


def plan_sample(tensors: Sequence[Tensor], budget: int, requests: int, seed: int) -> Sample:
    """Plan what to read of ``tensors`` with at most ``budget`` bytes and ``requests`` range requests (one per block).

    Everything is read if it fits. Otherwise vectors (scalars and 1-D tensors up to 1 MiB) are read whole, role by
    role, within a quarter of bytes and requests; everything else is sampled by cells. Strata are roles, with vectors separate
    from the rest; the blocks of a stratum are proportional to its elements, at least 8. If there are too few blocks for that,
    strata are pooled. Within a stratum tensors are drawn with probability proportional to their number of cells, and the
    cells of a tensor are drawn one from each of equal parts of it.

    A block is a whole number of rows (last axis) if a row fits into a block; otherwise it starts at a multiple of
    128 elements within its row. Only if 128 elements exceed the budget are blocks shorter, starting at any element.

    tensors: those with values; bytes count their codes without scales. Deterministic for the same arguments. The plan has no
    blocks if there are no elements or if the budget is too small for one. Raises InvalidRequest if ``budget`` or ``requests``
    is less than 1.
    """
    if budget < 1 or requests < 1:
        raise InvalidRequest(f"A sample needs at least 1 byte and 1 request, not {budget} and {requests}; raise the budget.")
    frame = _frame(tensors)
    rng = np.random.Generator(np.random.PCG64(seed))
    occupied = frame.elements > 0
    if int(frame.nbytes.sum()) <= budget and int(occupied.sum()) <= requests:
        return _sample(_whole(frame, np.flatnonzero(occupied)), frame, np.zeros(len(tensors), np.int64))

    certain = _vectors_in(frame, budget // 4, requests // 4)
    left, requests_left = budget - int(frame.nbytes[certain].sum()), requests - int(certain.sum())
    number = max(1, min(requests_left, left // SMALLEST_BLOCK))
    cells = _cut(frame, min(left // number, LARGEST_BLOCK))
    strata = 2 * frame.role + frame.vector
    plan = [_whole(frame, np.flatnonzero(certain))]
    sampled = occupied & ~certain
    for members, blocks in _pools(frame, cells, sampled, number, requests // 4 - int(certain.sum())):
        if blocks < STRATUM_BLOCKS * len(np.unique(strata[members])):
            strata[members] = strata.max(initial=0) + 1
        numbers, index = np.unique(strata[members], return_inverse=True)
        elements, available = np.zeros(len(numbers)), np.zeros(len(numbers))
        np.add.at(elements, index, frame.elements[members])
        np.add.at(available, index, cells.number[members])
        shares = _allocate(elements, available, blocks)
        for stratum, share in enumerate(shares.tolist()):
            plan.append(_draw(frame, cells, members[index == stratum], share, rng))
    return _sample(np.concatenate(plan), frame, strata)


def _frame(tensors: Sequence[Tensor]) -> _Frame:
    elements = np.array([tensor.elements for tensor in tensors], np.int64)
    bits = np.array([tensor.stored_bits for tensor in tensors], np.int64)
    nbytes = -(-elements * bits // 8)
    # The last axis of an empty tensor may exceed the range of int64.
    row = np.array([min(tensor.shape[-1], tensor.elements) if tensor.shape else 1 for tensor in tensors], np.int64)
    flat = np.array([len(tensor.shape) < 2 for tensor in tensors], np.bool_)
    role = np.unique([tensor.role for tensor in tensors], return_inverse=True)[1].astype(np.int64)
    return _Frame(elements, row, bits, nbytes, vector=flat & (nbytes <= LARGEST_BLOCK), role=role)


def _vectors_in(frame: _Frame, budget: int, requests: int) -> npt.NDArray[np.bool_]:
    """Select the vectors to read whole: all of a role or none, roles with few vectors first."""
    chosen = np.zeros(len(frame.elements), np.bool_)
    vectors = frame.vector & (frame.elements > 0)
    for role in np.argsort(np.bincount(frame.role[vectors]), kind="stable"):
        members = vectors & (frame.role == role)
        budget, requests = budget - int(frame.nbytes[members].sum()), requests - int(members.sum())
        if budget < 0 or requests < 0:
            break
        chosen |= members
    return chosen


def _cut(frame: _Frame, block_bytes: int) -> _Cells:
    """Split every tensor into cells of at most ``block_bytes``; a tensor with larger elements gets none."""
    most = block_bytes * 8 // np.maximum(frame.bits, 1)
    by_rows = frame.row <= most
    unit = np.where(by_rows, np.maximum(frame.row, 1), np.where(most >= RUN, RUN, np.maximum(most, 1)))
    line = np.where(by_rows, frame.elements, frame.row)
    units = -(-line // unit)
    per_line = -(-units // np.maximum(most // unit, 1))
    length = -(-units // np.maximum(per_line, 1)) * unit  # cells of nearly equal length, so that no cell is a tiny remainder
    per_line = -(-line // np.maximum(length, 1))
    number = np.where((most > 0) & (line > 0), per_line * (frame.elements // np.maximum(line, 1)), 0)
    return _Cells(line=line, length=length, per_line=per_line, number=number)


def _pools(frame: _Frame, cells: _Cells, sampled: npt.NDArray[np.bool_], blocks: int, vector_blocks: int) -> list[tuple[IntArray, int]]:
    """Divide the tensors to draw from into pools with their numbers of blocks: vectors (at most a quarter of all blocks) and the rest."""
    vectors, others = np.flatnonzero(sampled & frame.vector), np.flatnonzero(sampled & ~frame.vector)
    if not len(vectors) or not len(others) or blocks < 4 * STRATUM_BLOCKS:
        return [(np.flatnonzero(sampled), blocks)] if sampled.any() else []
    for_vectors = min(int(cells.number[vectors].sum()), max(STRATUM_BLOCKS, min(blocks // 4, vector_blocks)))
    return [(vectors, for_vectors), (others, blocks - for_vectors)]


def _allocate(elements: npt.NDArray[np.float64], cells: npt.NDArray[np.float64], blocks: int) -> IntArray:
    """Allocate blocks to strata, proportional to ``elements``.

    Each stratum gets at least 8 if there are enough, and at most the number of its cells.
    """
    least = np.minimum(cells, STRATUM_BLOCKS if len(cells) > 1 else 0)
    low, high = 0.0, float(blocks + cells.sum()) / max(float(elements.sum()), 1.0) + float((cells / elements).max())
    for _ in range(60):
        middle = (low + high) / 2
        fits = np.floor(np.clip(middle * elements, least, cells)).sum() <= blocks
        low, high = (middle, high) if fits else (low, middle)
    return np.floor(np.clip(low * elements, least, cells)).astype(np.int64)


def _draw(frame: _Frame, cells: _Cells, members: IntArray, blocks: int, rng: np.random.Generator) -> IntArray:
    """Draw ``blocks`` cells of the tensors ``members``, all if there are no more; returns (<= blocks, 3) tensor, start and count."""
    total = int(cells.number[members].sum())
    if blocks >= total:
        return _whole(frame, members[cells.number[members] > 0])
    # Shuffled: in file order a regular step would resonate with the order of matrices in a layer.
    members = rng.permutation(members)
    ends = np.cumsum(cells.number[members])
    points = (np.arange(blocks) + rng.random()) * (total / blocks)
    at = np.minimum(np.searchsorted(ends, points, side="right"), len(members) - 1)
    drawn = np.minimum(np.bincount(at, minlength=len(members)), cells.number[members])

    tensor = np.repeat(members, drawn)
    parts, number = np.repeat(drawn, drawn), cells.number[tensor]
    part = np.arange(len(tensor)) - np.repeat(np.cumsum(drawn) - drawn, drawn)
    first, last = part * number // parts, (part + 1) * number // parts
    # Parts differ in length by one cell; rotating the tensor by a random number of cells gives every cell the same probability.
    turn = np.repeat(rng.integers(0, np.maximum(cells.number[members], 1)), drawn)
    cell = (rng.integers(first, last) + turn) % number if len(tensor) else first
    inside = cell % cells.per_line[tensor] * cells.length[tensor]
    start = cell // cells.per_line[tensor] * cells.line[tensor] + inside
    return np.column_stack((tensor, start, np.minimum(cells.length[tensor], cells.line[tensor] - inside)))


def _whole(frame: _Frame, members: IntArray) -> IntArray:
    return np.column_stack((members, np.zeros_like(members), frame.elements[members]))


def _sample(plan: IntArray, frame: _Frame, strata: IntArray) -> Sample:
    ordered = plan[np.lexsort((plan[:, 1], plan[:, 0]))]
    blocks = [Block(tensor, start, count) for tensor, start, count in ordered.tolist()]
    _, numbered = np.unique(strata, return_inverse=True)
    population = np.zeros(int(numbered.max(initial=-1)) + 1, np.int64)
    np.add.at(population, numbered, frame.elements)
    return Sample(blocks, numbered.astype(np.int64), population)
