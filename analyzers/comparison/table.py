"""The sums of one pass, by tensor and pair of sides, and what follows from them for groups of tensors: shares, norms, intervals."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints import Group, Plan, Span, Tensor
from analyzers.comparison.counting import Counted, Counter, Floats, Ints, Looked, Sides, Values, is_matrix
from analyzers.core.records import Interval
from analyzers.numerics import ChangedPositions
from analyzers.numerics.copy_kernels import FITTED, SUMS
from analyzers.numerics.intervals import Blocks
from analyzers.numerics.pair_kernels import LARGEST, RELATIVE, SQUARE, TOTAL
from analyzers.numerics.pairs import PairSums
from analyzers.numerics.sketches import Distribution

Layer = int | None

# Sums over pairs (x, p): see `pairs.PairSums`. A name that ends in _x or _p belongs to that side.
_OF_COUNTS = ("changed", "probe", "differ", "nonfinite", "nonfinite_differ", "broken_x", "broken_p", "zero_x", "zero_p")
_OF_MOMENTS = ("square_x", "square_p", "apart", "sum_x", "sum_p", "xx", "xp", "pp")
_OF_UPDATES = tuple(f"{size}{power}{of}" for of in ("", "_changed") for size in ("update", "relative") for power in ("", "_square"))
# Pairs of which one is the other rounded, directly, or through a format; and of which both are roundings of one value, to bf16 and fp16.
CASTS = ("cast", "cast_f16", "cast_bf16", "cast_apart")
COLUMNS = ("values", *_OF_COUNTS, *_OF_MOMENTS, *_OF_UPDATES, *CASTS)
_AT = {name: at for at, name in enumerate(COLUMNS)}
_OTHER = {"xx": "pp", "pp": "xx"} | {f"{name}_{a}": f"{name}_{b}" for name in ("broken", "zero", "square", "sum") for a, b in ("xp", "px")}
_EXCHANGED = [_AT[_OTHER.get(name, name)] for name in COLUMNS]


def _row(sums: PairSums) -> Floats:
    """Return the columns of one pair."""
    plain, moved = sums.sums
    parts = [(first + TOTAL, first + SQUARE) for first in (0, RELATIVE)]
    updates = [row[at] for row in (plain + moved, moved) for part in parts for at in part]
    return np.concatenate([[sums.values], sums.counts, sums.moments, updates, sums.casts])


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over some tensors, of a pair of sides; ``sums.xp`` or ``sums["xp"]``. columns: (COLUMNS,), or (n, COLUMNS) one by one."""

    columns: Floats

    def __getitem__(self, name: str) -> Any:
        return self.columns[..., _AT[name]]

    def share(self, name: str) -> float | None:
        """Return the sum over the number of values; None without values."""
        return float(self[name] / self["values"]) if self["values"] else None

    def unchanged(self, name: str = "changed") -> float | None:
        """Return 1 minus the share of changed values."""
        return float((self["values"] - self[name]) / self["values"]) if self["values"] else None

    @property
    def cosine(self) -> float | None:
        """x.p / |x| |p|, over pairs of finite values; None if a side is 0."""
        xx, pp = float(self["square_x"]), float(self["square_p"])
        return float(np.clip((xx + pp - self["update_square"]) / 2 / np.sqrt(xx * pp), -1, 1)) if xx > 0 and pp > 0 else None

    @property
    def distance(self) -> float | None:
        """|x - p| / |p|, over pairs of finite values; None if p is 0."""
        return float(np.sqrt(self["update_square"] / self["square_p"])) if self["square_p"] > 0 else None

    @property
    def cast(self) -> str | None:
        """The cast that makes all values equal: "cast", through fp16, through bf16; None if none does."""
        return next((name for name in CASTS if self[name] == self["values"] > 0), None)


class Table:
    """Sums by tensor (axis t), pair of sides (axis p) and column; and the values that were kept.

    groups: the tensors side by side; weights: (t,) elements that an element read of a tensor stands for; pairs: the sides of each pair;
    matrix: (t,) whether a tensor counts in comparisons. constant, constants: (t, sides), see `counting.Counted`. kept: number of the group
    -> (sides, n) values; places: -> changed rows and columns of the side placed. blocks: number of blocks of a sample, None if everything
    was read. copies: (t, SUMS) of each of `Task.copies`, and channels: (t, FITTED), see `copy_kernels`; columns_of: sums of columns by
    number of the group, and rows_of: factors of rows if everything was read, see `counting.Counted`; norms: what these lack.
    """

    def __init__(self, groups: Sequence[Group], plan: Plan, counter: Counter) -> None:
        self.groups, self.plan, self.task, self.pairs = groups, plan, counter.task, tuple(counter.task.pairs)
        self._counter, self._of = counter, {sides: number for number, sides in enumerate(counter.task.pairs)}
        tensors, sides, pairs = len(groups), len(groups[0].sides), len(self.pairs)
        self.columns = np.zeros((tensors, pairs, len(COLUMNS)))
        self._largest, self._first = np.zeros((tensors, pairs, 2, 2)), np.full((tensors, pairs), -1)
        self._digests = np.zeros((tensors, pairs, 2), np.uint64)
        self.constant, self.constants = np.zeros((tensors, sides), np.int64), np.array([[[np.inf, -np.inf]] * sides] * tensors)
        self.strata = np.array([plan.strata.get(group.base.name, 0) for group in groups])
        self.weights = np.array(counter.weights)[self.strata]
        self.matrix = np.array([is_matrix(group.base.shape, group.base.role) for group in groups])
        self._layers = _numbered([group.base.layer for group in groups])
        self._roles = _numbered([group.base.role for group in groups])
        self._grams: dict[Layer, Floats] = {}
        self.copies = {sides: np.zeros((tensors, SUMS)) for sides in self.task.copies}
        self.channels = {sides: np.zeros((tensors, FITTED)) for sides in self.task.copies}
        self.columns_of: dict[Sides, dict[int, Values]] = {sides: {} for sides in self.task.copies}
        self.rows_of: dict[Sides, dict[int, Values]] = {sides: {} for sides in self.task.copies}
        self.norms = counter.norms
        self.places: dict[int, ChangedPositions] = {}
        self.overlap: Ints | None = None
        self.looked: list[Looked] = []
        self._kept: dict[int, list[tuple[int, Values]]] = {}
        self._blocks: dict[tuple[int, int, int], tuple[int, Floats]] = {}

    def add(self, span: Span, counted: Counted) -> None:
        """Add one finished span."""
        number = self._counter.numbers[span.tensor.name]
        if counted.grams is not None:
            grams = self._grams.setdefault(span.tensor.layer, np.zeros_like(counted.grams))
            grams += self.weights[number] * counted.grams
        rows = np.array([_row(sums) for sums in counted.pairs])
        self.columns[number] += rows
        for pair, sums in enumerate(counted.pairs):
            changed = sums.sums[1, [LARGEST, RELATIVE + LARGEST]]
            every = np.maximum(sums.sums[0, [LARGEST, RELATIVE + LARGEST]], changed)
            self._largest[number, pair] = np.maximum(self._largest[number, pair], [every, changed])
            self._digests[number, pair] += sums.digests
            first, known = span.start + sums.first, self._first[number, pair]
            if sums.first >= 0 and (known < 0 or first < known):
                self._first[number, pair] = first
        self.constant[number] += counted.constant
        for sides, sums, channels in zip(self.task.copies, counted.copies, counted.channels, strict=True):
            self.copies[sides][number] += sums
            self.channels[sides][number] += channels
        for sides, columns in counted.columns.items():
            known = self.columns_of[sides].setdefault(number, np.zeros((len(columns), self.groups[number].base.shape[-1]), np.float32))
            known[:, span.column : span.column + columns.shape[1]] += columns
        for sides, parts in counted.rows.items():
            if self.plan.exact and (width := self.groups[number].base.shape[-1]):
                factors = self.rows_of[sides].setdefault(number, np.full(self.groups[number].base.elements // width, np.nan, np.float32))
                found, row = np.concatenate(parts), -(-span.start // width)
                factors[row : row + found.size] = found
        low, high = self.constants[number, :, 0], self.constants[number, :, 1]
        self.constants[number] = np.stack([np.minimum(low, counted.constants[:, 0]), np.maximum(high, counted.constants[:, 1])], axis=1)
        self._kept.setdefault(number, []).extend((span.start, values) for values in counted.kept)
        self.looked += counted.looked
        if counted.places is not None:
            if number in self.places:
                self.places[number].merge(counted.places)
            else:
                self.places[number] = counted.places
        if counted.overlap is not None:
            if self.overlap is None:
                self.overlap = np.zeros((len(self.plan.population), *counted.overlap.shape), np.int64)
            self.overlap[self.strata[number]] += counted.overlap
        if not self.plan.exact:
            self._blocks[number, span.tensor.offset, span.start] = span.count, rows[:, : 1 + len(_OF_COUNTS)]

    # Sums

    def _pair(self, x: int, p: int) -> int:
        """Return the number of the pair of two sides, in either order."""
        return self._of[x, p] if (x, p) in self._of else self._of[p, x]

    def tensors(self, x: int, p: int) -> Sums:
        """Return the sums of each tensor, of the values read, for x of side ``x`` and p of side ``p``."""
        found = self.columns[:, self._pair(x, p)]
        return Sums(found if (x, p) in self._of else found[:, _EXCHANGED])

    def sums(self, x: int, p: int, chosen: Any = None, weighed: bool = True) -> Sums:
        """Return the sums over the tensors ``chosen``, (t,), by default all: estimated for all their values, or of those read."""
        rows = self.tensors(x, p).columns * (self.weights[:, None] if weighed and not self.plan.exact else 1.0)
        return Sums((rows if chosen is None else rows[chosen]).sum(axis=0))

    def largest(self, x: int, p: int) -> Floats:
        """Return (t, 2, 2) the largest update and the largest relative one of each tensor, of all values and of changed ones."""
        found: Floats = self._largest[:, self._pair(x, p)]
        return found

    def digests(self, x: int, p: int) -> NDArray[np.uint64]:
        """Return (t, 2) hashes of the values of each tensor of both sides, equal for the same values in any order (see `PairSums`)."""
        return self._digests[:, self._pair(x, p)][:, :: 1 if (x, p) in self._of else -1]

    def first(self, x: int, p: int) -> Ints:
        """Return (t,) the first element of each tensor that differs, -1 if none does."""
        found: Ints = self._first[:, self._pair(x, p)]
        return found

    def gram(self, sides: Sequence[int]) -> dict[Layer, Floats]:
        """Return, by layer, (GROUPS, k, k) the sums of products of some sides over matrices."""
        rows = list(sides)
        return {layer: grams[:, rows][:, :, rows] for layer, grams in self._grams.items()}

    # Tensors

    def holders(self, *sides: int) -> NDArray[np.bool_]:
        """Return (t,) which tensors all ``sides`` have."""
        return np.array([all(group.sides[side] is not None for side in sides) for group in self.groups])

    def tensor(self, number: int, side: int) -> Tensor:
        """Return the tensor of a side that has it."""
        tensor = self.groups[number].sides[side]
        assert tensor is not None
        return tensor

    def by_layer(self, chosen: Any) -> dict[Layer, NDArray[np.bool_]]:
        """Return (t,) masks of the tensors of each layer, among those ``chosen``."""
        return _masks(self._layers, chosen)

    def by_role(self, chosen: Any) -> dict[str, NDArray[np.bool_]]:
        """Return (t,) masks of the tensors of each role, among those ``chosen``."""
        return _masks(self._roles, chosen)

    # Values that were kept

    def kept(self, number: int) -> Values:
        """Return (sides, n) the values of a group that were kept, in order."""
        found = [values for _, values in sorted(self._kept.get(number, []), key=lambda each: each[0])]
        return np.concatenate(found, axis=1) if found else np.zeros((len(self.groups[0].sides), 0), np.float32)

    def of_layer(self, layer: Layer, sides: Sequence[int]) -> Values:
        """Return (k, n) the kept values of some sides in a layer, 0 where a side lacks them; without columns of zeros alone."""
        found = [self.kept(number)[list(sides)] for number in self._kept if self.groups[number].base.layer == layer]
        values = np.nan_to_num(np.concatenate(found, axis=1)) if found else np.zeros((len(sides), 0), np.float32)
        return values[:, values.any(axis=0)]

    def digits(self, side: int) -> int:
        """Return the number of significant bits that the kept values of a side use at most: 24 of fp32, 8 of bf16."""
        used = np.uint32(0)
        for number in self._kept:
            used |= np.bitwise_or.reduce(self.kept(number)[side].view(np.uint32), initial=0)
        mantissa = int(used) & 0x7FFFFF
        return 24 - ((mantissa & -mantissa).bit_length() - 1) if mantissa else 1

    # Sizes of updates, and intervals of a sample

    def distribution(self, x: int, p: int, size: str) -> tuple[Distribution, Distribution]:
        """Return the sizes of the updates between two sides, of the pairs read, and estimated for all. size: "update" or "relative"."""
        tables = self._counter.tables(self.pairs[self._pair(x, p)])
        largest = self.largest(x, p).max(axis=0)[:, int(size == "relative")]
        counts = tables.absolute if size == "update" else tables.relative
        found = []
        for at, sums in ((0, self.sums(x, p, weighed=False)), (-1, self.sums(x, p))):
            totals, squares = (np.array([sums[f"{size}{power}{of}"] for of in ("", "_changed")]) for power in ("", "_square"))
            found.append(Distribution(counts[at], _equal(sums), totals, squares, largest))
        return found[0], found[1]

    def steps(self, x: int, p: int) -> tuple[Floats, Floats]:
        """Return the numbers of pairs by bf16 steps between two sides, of those read, and estimated for all."""
        steps = self._counter.tables(self.pairs[self._pair(x, p)]).steps
        found = steps[0].copy(), steps[-1].copy()
        for each, weighed in zip(found, (False, True), strict=True):
            each[0] += _equal(self.sums(x, p, weighed=weighed))
        return found

    @property
    def blocks(self) -> int | None:
        """The number of blocks of a sample, None if everything was read."""
        return len(self._blocks) or None

    def intervals(
        self, x: int, p: int, share: Callable[[Sums], Floats], masks: Collection[NDArray[np.bool_]] = ()
    ) -> list[Interval | None]:
        """Return the 95% interval of a share of all values, or of those of the tensors in each of some ``masks``; None without a sample.

        share: of the sums of blocks, the number of values that count.
        """
        if not self._blocks:
            return [None] * (len(masks) or 1)
        units, number, rows = self._units(x, p)
        chosen = np.array([mask[number] for mask in masks] or [np.ones(len(number), np.bool_)]).T
        tested, found = (counts.astype(np.int64)[:, None] * chosen for counts in (rows["values"], share(rows)))
        return Interval.each(units.shares(tested, found))

    def unseen(self) -> float | None:
        """Return the 95% bound on the share of values of a kind that no block of a sample shows, None if everything was read."""
        return self._units(*self.pairs[0])[0].unseen() if self._blocks else None

    def unread_blocks(self) -> int:
        """Return the number of blocks in strata of which a part was read."""
        units = self._units(*self.pairs[0])[0]
        read = np.bincount(units.stratum, units.elements, len(units.population))
        return int((read < units.population)[units.stratum].sum())

    def _units(self, x: int, p: int) -> tuple[Blocks, Ints, Sums]:
        """Return the blocks of a sample, independent units, with the number of each one's tensor and its sums."""
        places = sorted(self._blocks)
        number = np.array([number for number, _, _ in places])
        elements = np.array([self._blocks[place][0] for place in places], np.int64)
        rows = np.array([self._blocks[place][1][self._pair(x, p)] for place in places])
        return Blocks(self.strata[number], elements, self.plan.population), number, Sums(rows)


def unchanged(sums: Sums) -> Floats:
    """Count the values that are equal in bf16."""
    found: Floats = sums["values"] - sums["changed"]
    return found


def _equal(sums: Sums) -> float:
    """Count the pairs of finite values that are equal as stored."""
    return float(sums["values"] - sums["nonfinite"] - (sums["differ"] - sums["nonfinite_differ"]))


def _numbered(keys: Sequence[Any]) -> tuple[list[Any], Ints]:
    """Return the different keys, in order, and the number of each entry's."""
    different = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return list(different), np.array([different[key] for key in keys], np.int64)


def _masks(numbered: tuple[list[Any], Ints], chosen: Any) -> dict[Any, NDArray[np.bool_]]:
    keys, numbers = numbered
    return {keys[number]: (numbers == number) & chosen for number in np.unique(numbers[chosen]).tolist()}
