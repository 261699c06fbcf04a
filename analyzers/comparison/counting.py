"""Counts one pass over several checkpoints: sums of every two sides that are asked for, and a small sample of values to look into.

The work function of a stream. Everything that compares weights follows from what it counts.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints import Chunk, Group, Plan, Span, Tensor
from analyzers.checkpoints.quantization.decoded_file import read_field
from analyzers.checkpoints.quantization.quantized import Field, Quantized
from analyzers.comparison.norms import Norms, scales_channels
from analyzers.numerics import ChangedPositions, intersections, torch_kernels
from analyzers.numerics.copy_kernels import COLUMN_SUMS, FITTED, SUMS, add_columns, count_copy, fit_rows
from analyzers.numerics.pair_kernels import BEYOND, PART
from analyzers.numerics.pairs import Codes, PairCounter, PairSums, codes_of, count_on_device
from analyzers.numerics.sketches import PairTables

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Values = NDArray[np.float32]
Sides = tuple[int, int]

GROUPS = 32  # units of the jackknife: parts of a layer are dealt to them
RUN = 128  # values that are kept together are consecutive
PIECE = 4 * PART  # values that are looked into together: whole rows, unless those are longer
# Values of all sides that are kept, and values of each side in the pieces that are looked into: the structure of signs is removed from
# these, which costs a hundred times as much as everything else, and the agreement of so many unrelated signs is 0 within 0.001.
_KEPT, _LOOKED = 2_000_000, 1 << 20
_FIELDS: tuple[Field, ...] = "scale", "zero", "bias"
_COLUMNS = 1 << 23  # most columns whose sums are held
_CHOSEN_BY = 64  # rows that tell behind which norm a matrix is
_FEW = 1 << 16  # values of a span that are counted here before a GPU has begun


@dataclass(frozen=True, slots=True)
class Task:
    """What to count.

    pairs: sides compared with each other, numbered; sized: those whose sizes of updates are collected; related: whether to count what tells
    where values come from, and fit: whether to add Gram matrices and to keep values; copies: sides with quantized tensors, each with
    another side that may be their source; overlaps: sides whose changes since the side ``since`` are compared with each other; placed: the
    side whose rows and columns that changed since then are counted; eta: threshold of the probe; device: that counts pairs, "cpu" or
    "cuda".
    """

    pairs: Sequence[Sides]
    sized: Sequence[Sides] = ()
    related: bool = True
    fit: bool = True
    copies: Sequence[Sides] = ()
    since: int = 0
    overlaps: Sequence[int] = ()
    placed: int | None = None
    eta: float = 1e-3
    device: str = "cpu"


@dataclass(slots=True)
class Looked:
    """Values of a piece of a matrix, (sides, n), in rows of ``width``: NaN of a side that lacks them. number: of the group."""

    number: int
    width: int
    values: Values


@dataclass(slots=True)
class Counted:
    """The counts of one span.

    pairs: of each of `Task.pairs`; constant: (sides,) number of values in parts of one value throughout, and the lowest and highest of
    these; copies: (of each of `Task.copies`, SUMS), and channels: (.., FITTED), see `copy_kernels`; columns: of copies whose channels may
    be scaled, (COLUMN_SUMS, length of a row); rows: the factors of their rows, from the first whole row on; grams: (GROUPS, sides, sides);
    kept: (sides, n) values, NaN of a side that lacks them; places, overlap: see `Task`; the latter (3, k, k), the elements compared in both
    i and j, those of them that i changed, and those that both changed.
    """

    pairs: list[PairSums]
    constant: Ints
    constants: Floats
    copies: Floats
    channels: Floats
    columns: dict[Sides, Floats] = field(default_factory=dict)
    grams: Floats | None = None
    rows: dict[Sides, list[Values]] = field(default_factory=dict)
    kept: list[Values] = field(default_factory=list)
    looked: list[Looked] = field(default_factory=list)
    places: ChangedPositions | None = None
    overlap: Ints | None = None


class Workspace:
    """What one thread needs to count a chunk: loops' buffers, and the sizes of updates, by pair of sides."""

    def __init__(self, task: Task, tables: int) -> None:
        self.counter = PairCounter(task.eta, only_changes=not task.related)
        self.tables = {sides: PairTables.empty(tables) for sides in task.sized}


class Counter:
    """Counts spans for a `Task`; called from several threads. groups: the tensors side by side; plan: what is read of them."""

    def __init__(self, task: Task, groups: Sequence[Group], plan: Plan) -> None:
        self.task, self.groups, self._plan = task, groups, plan
        self.numbers = {group.base.name: number for number, group in enumerate(groups)}
        self.weights = [float(weight) for weight in plan.weights()]
        sides, elements = len(groups[0].sides), max(1, sum(span.count for span in plan.spans))
        run = max(min(1.0, _KEPT / sides / elements) * PIECE, 1e-9)
        self.run, self.every = ceil(run / RUN) * RUN, max(1, round(RUN / run))
        self.stride = max(1, round(elements / _LOOKED))
        self.columned = _columned(task, groups)
        self.norms = Norms(groups, task.copies, {span.tensor.layer for span in plan.spans if any(map(scales_channels, span.sides))})
        self._spaces: list[Workspace] = []
        self._made: list[Workspace] = []
        self._lock = threading.Lock()

    def __call__(self, span: Span, chunks: Iterator[Chunk]) -> Counted:
        """Count all of ``span``."""
        counting = _Counting(self, span, self.weights[self._plan.strata[span.tensor.name]])
        for chunk in chunks:
            space = self._take()
            counting.add(chunk, space)
            self._spaces.append(space)
        space = self._take()
        counting.finish(space)
        self._spaces.append(space)
        return counting.counted

    def places_of(self, side: Tensor | None) -> ChangedPositions | None:
        """Return counters for the rows (the last axis) and columns of a matrix that is read whole, with the axes before flattened."""
        if not self._plan.exact or side is None or len(side.shape) < 2 or not side.elements:
            return None
        return ChangedPositions(prod(side.shape[:-1]), side.shape[-1])

    def tables(self, sides: Sides) -> PairTables:
        """Return the sizes of the updates between two sides."""
        whole = PairTables.empty(1 if self._plan.exact else 2)
        for space in self._made:
            whole.merge(space.tables[sides])
        return whole

    def _take(self) -> Workspace:
        with self._lock:
            if self._spaces:
                return self._spaces.pop()
            made = Workspace(self.task, 1 if self._plan.exact else 2)
            self._made.append(made)
            return made


class _Counting:
    """The counts of one span in progress. weight: elements that an element of it stands for."""

    def __init__(self, counter: Counter, span: Span, weight: float) -> None:
        self._counter, self._task, self._span, self._weight = counter, counter.task, span, weight
        self._number, sides = counter.numbers[span.tensor.name], len(span.sides)
        self._dtypes = [side.counted_as if side is not None else "" for side in span.sides]
        self._narrow = {dtype for dtype in self._dtypes if dtype} == {"BF16"}
        self._matrix = is_matrix(span.tensor.shape, span.tensor.role)
        self._width = span.tensor.shape[-1] if span.tensor.shape else 1
        self._piece = piece_length(self._width)
        self._turned = span.tensor.strides is None and counter.groups[self._number].base.strides is not None  # read in memory order
        columned = () if self._turned else counter.columned.get(self._number, ())
        self.counted = Counted(
            [PairSums() for _ in self._task.pairs], np.zeros(sides, np.int64), np.array([[np.inf, -np.inf]] * sides),
            np.zeros((len(self._task.copies), SUMS)), np.zeros((len(self._task.copies), FITTED)),
            {sides: np.zeros((COLUMN_SUMS, max(1, self._width))) for sides in columned},
            np.zeros((GROUPS, sides, sides)) if self._matrix and self._task.fit else None,
            overlap=np.zeros((3, len(self._task.overlaps), len(self._task.overlaps)), np.int64) if self._task.overlaps else None,
        )  # fmt: skip
        if self._task.placed is not None:
            self.counted.places = counter.places_of(span.sides[self._task.placed])
        self._on_device: Any = None
        self._behind: dict[Sides, Floats] = {}

    def add(self, chunk: Chunk, space: Workspace) -> None:
        """Count a chunk: in parts where a side with fewer rows ends."""
        if self._is_for_device(chunk):
            self._count_on_device(chunk)
            return
        lengths = [0 if codes is None else len(codes) for codes in chunk.sides]
        start = 0
        for stop in sorted(set(lengths) - {0}):
            holders = [i for i, length in enumerate(lengths) if length >= stop]
            codes = {i: codes_of(chunk.sides[i][start:stop], self._dtypes[i], self._narrow) for i in holders}
            self._add(codes, chunk.start + start, space)
            start = stop

    def finish(self, space: Workspace) -> None:
        """Add what a GPU has counted, once all chunks were added."""
        if self._on_device is not None:
            count_on_device(self._on_device, self.counted.pairs[0], space.tables.get(self._task.pairs[0]))

    def _add(self, codes: dict[int, Codes], start: int, space: Workspace) -> None:
        """Count ``codes`` of some sides, of one length, from element ``start`` of the tensor on."""
        constant = {i: side.constant() for i, side in codes.items()}
        for i, parts in constant.items():
            if parts.any():
                self._add_constant(i, codes[i], parts)
        skipped = np.logical_or.reduce(list(constant.values())) if self._matrix else np.zeros_like(constant[min(constant)])
        asked, since = {*self._task.overlaps, self._task.placed if self.counted.places is not None else None} & set(codes), self._task.since
        masks = {i: np.empty(codes[i].patterns.size, np.bool_) for i in asked if i is not None and i != since and since in codes}
        products = {}
        for sums, (i, j) in zip(self.counted.pairs, self._task.pairs, strict=True):
            if i in codes and j in codes:
                products[i, j] = np.zeros((skipped.size, 3))
                tables, mask = space.tables.get((i, j)), masks.get(j if i == since else i) if since in (i, j) else None
                space.counter.count(codes[i], codes[j], sums, products[i, j], skipped, tables, self._weight, mask)
        if self.counted.overlap is not None:
            self._add_overlap(masks, next(iter(codes.values())).patterns.size)
        if self.counted.places is not None and self._task.placed in masks:
            self.counted.places.update(masks[self._task.placed], start)
        if self.counted.grams is not None:
            self._add_products(products, start)
            if len(codes) > 1:
                self._keep(codes, start)
        if self._matrix and self._task.related and len(codes) > 1:
            self._look(codes, start)
        self._add_copies(codes, start)

    def _add_copies(self, codes: dict[int, Codes], start: int) -> None:
        """Hold the quantized tensors against those that are not quantized, or in more bits."""
        sides = self._span.sides
        for sums, channels, (i, j) in zip(self.counted.copies, self.counted.channels, self._task.copies, strict=True):
            x, p = sides[i], sides[j]
            if i not in codes or j not in codes or x is None or p is None:
                continue
            if x.stored is None and (i, j) in self.counted.columns:
                values = codes[i].values()
                add_columns(values, codes[j].values(), np.zeros_like(values), start, self.counted.columns[i, j])
            if not isinstance(x.stored, Quantized) or (p.stored is not None and x.stored_bits >= p.stored_bits):
                continue
            count, levels = codes[i].patterns.size, x.stored.levels
            scale, zero, bias = (read_field(x, name, start, count) for name in _FIELDS)
            uniform = bool((np.diff(levels) == 1).all())
            values, others = codes[i].values(), codes[j].values()
            count_copy(values, others, scale, zero, bias, levels, uniform, _coarse(x.stored), sums)
            if scales_channels(x) and not self._turned:
                if (i, j) in self.counted.columns:
                    add_columns(values, others, scale, start, self.counted.columns[i, j])
                self._fit_rows((i, j), values, others, scale, start, channels)

    def _fit_rows(self, sides: Sides, x: Values, p: Values, scale: Values, start: int, sums: Floats) -> None:
        """Fit a factor to each whole row of a chunk, with the factors of the norm before the matrix."""
        first = -start % self._width
        number = (x.size - first) // self._width
        if number > 0:
            values, others, steps = (each[first : first + number * self._width].reshape(number, self._width) for each in (x, p, scale))
            if sides not in self._behind:
                few, theirs = (each[:_CHOSEN_BY].astype(np.float64) for each in (values, others))
                matrix = self._counter.groups[self._number].base
                self._behind[sides] = self._counter.norms.behind(sides, matrix, self._span.column, few, theirs)
            rows = np.empty(number, np.float32)
            fit_rows(values, others, steps, self._behind[sides], rows, sums)
            self.counted.rows.setdefault(sides, []).append(rows)

    def _add_constant(self, side: int, codes: Codes, parts: NDArray[np.bool_]) -> None:
        """Add the parts of a side that hold one value throughout."""
        at = np.flatnonzero(parts)
        first = Codes(codes.patterns[at * PART], codes.dtype).values().astype(np.float64)
        self.counted.constant[side] += int(np.minimum(codes.patterns.size - at * PART, PART).sum())
        low, high = self.counted.constants[side]
        self.counted.constants[side] = min(low, float(first.min())), max(high, float(first.max()))

    def _add_overlap(self, masks: dict[int, NDArray[np.bool_]], compared: int) -> None:
        assert self.counted.overlap is not None
        places = [place for place, side in enumerate(self._task.overlaps) if side in masks]
        shared = intersections([masks[self._task.overlaps[place]] for place in places])
        among = np.ix_(places, places)
        self.counted.overlap[0][among] += compared
        self.counted.overlap[1][among] += np.diagonal(shared)[:, None]
        self.counted.overlap[2][among] += shared

    def _add_products(self, products: dict[Sides, Floats], start: int) -> None:
        """Deal the products of parts to the groups of the jackknife."""
        grams, known = self.counted.grams, set[int]()
        assert grams is not None
        for (i, j), of_parts in products.items():
            groups: Any = (start // PART + self._number + np.arange(len(of_parts))) % GROUPS
            np.add.at(grams, (groups, i, j), of_parts[:, 1])
            np.add.at(grams, (groups, j, i), of_parts[:, 1])
            for side, column in ((i, 0), (j, 2)):
                if side not in known:
                    np.add.at(grams, (groups, side, side), of_parts[:, column])
                    known.add(side)

    def _keep(self, codes: dict[int, Codes], start: int) -> None:
        """Keep runs of consecutive values, at the same places of all sides, where all of these are usable."""
        counter, size = self._counter, next(iter(codes.values())).patterns.size
        chosen = np.arange(0, size, PIECE)
        chosen = chosen[((start + chosen) // PIECE + self._number) % counter.every == 0]
        length = min(counter.run, size)
        at = np.unique(np.minimum(chosen, size - length)[:, None] + np.arange(length))
        if at.size:
            values = self._values(codes, at)
            with np.errstate(invalid="ignore"):
                usable = np.all((np.abs(values) < BEYOND) | np.isnan(values[:, :1]), axis=0)
            self.counted.kept.append(values if usable.all() else values[:, usable])

    def _look(self, codes: dict[int, Codes], start: int) -> None:
        """Take whole pieces of some rows of all sides."""
        size = next(iter(codes.values())).patterns.size
        for at in range(0, size, self._piece):
            if ((start + at) // self._piece + self._number) % self._counter.stride == 0:
                piece = np.arange(at, min(at + self._piece, size))
                self.counted.looked.append(Looked(self._number, self._width, self._values(codes, piece)))

    def _values(self, codes: dict[int, Codes], at: Ints) -> Values:
        """Return (sides, n) the values of the elements ``at``, NaN of the sides that lack them."""
        values = np.full((len(self._dtypes), at.size), np.nan, np.float32)
        for i, side in codes.items():
            values[i] = Codes(side.patterns[at], side.dtype).values()
        return values

    def _is_for_device(self, chunk: Chunk) -> bool:
        """Return whether a chunk is counted by torch: what is on its device, or long enough to be copied there. Not for fits."""
        if not isinstance(chunk.codes, np.ndarray):
            return True
        plain = len(self._dtypes) == 2 and "" not in self._dtypes
        return self._task.device != "cpu" and plain and self._span.count >= _FEW and len(chunk.sides[1]) == len(chunk.codes)

    def _count_on_device(self, chunk: Chunk) -> None:
        from analyzers.numerics.torch_pairs import DevicePairs

        base, tuned = (torch_kernels.on_device(codes, self._task.device) for codes in chunk.sides)
        if self._on_device is None:
            dtypes = self._dtypes[0], self._dtypes[1]
            self._on_device = DevicePairs(dtypes, self._task.eta, (0, 1) in self._task.sized, base.device)
        self._on_device.update(base, tuned)
        self.counted.pairs[0].values += len(base)
        if self.counted.places is not None:
            self.counted.places.update(self._on_device.changed(base, tuned).cpu().numpy(), chunk.start)


def _columned(task: Task, groups: Sequence[Group]) -> dict[int, list[Sides]]:
    """Return the copies by whose columns each matrix is summed, where programs may scale channels, of itself or beside: as many as fit."""
    found, left = dict[int, list[Sides]](), _COLUMNS
    layers = {i: {group.base.layer for group in groups if scales_channels(group.sides[i])} for i, _ in task.copies}
    for number, group in enumerate(groups):
        shape = group.base.shape
        for i, j in task.copies:
            x, beside = group.sides[i], is_matrix(shape, group.base.role) and group.base.layer in layers[i]
            scaled = scales_channels(x) or (x is not None and x.stored is None and beside)
            if scaled and group.sides[j] is not None and shape and shape[-1] <= left:
                left -= shape[-1]
                found.setdefault(number, []).append((i, j))
    return found


def _coarse(stored: Quantized) -> float:
    """Return the largest relative error by which scales may have been rounded after they had been used."""
    if isinstance(stored.scale, Quantized):
        return 2.0**-7 if stored.layout == "bitsandbytes" else 0.0
    return 2.0**-9 if stored.scale is not None and stored.scale.dtype == "BF16" else 2.0**-12


def piece_length(width: int) -> int:
    """Return the number of values looked into at a time of a tensor with rows of ``width``: whole rows, unless they are longer."""
    return max(1, PIECE // width) * width if width <= PIECE else PIECE


def is_matrix(shape: Sequence[int], role: str) -> bool:
    """Return whether a tensor's values are compared with those of candidates: norms and biases are alike in unrelated models."""
    return role != "norm" and len(shape) > 1 and min(shape[-2:]) > 1
