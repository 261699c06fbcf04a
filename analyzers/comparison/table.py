"""The sums of one pass, by tensor and pair of sides, and what follows from them for groups of tensors: shares, norms, intervals."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints import Group, Plan, Span
from analyzers.comparison.counting import GROUPS, Counted, Counter, Floats, Ints, Looked, Values, is_matrix
from analyzers.numerics import ChangedPositions
from analyzers.numerics.intervals import Blocks, Interval
from analyzers.numerics.pair_kernels import LARGEST, RELATIVE, SQUARE, TOTAL
from analyzers.numerics.pairs import PairSums
from analyzers.numerics.sketches import Distribution, PairTables

Layer = int | None

# Sums over pairs (x, p): see `pairs.PairSums`. A name that ends in _x or _p belongs to that side.
_OF_COUNTS = ("changed", "probe", "differ", "nonfinite", "nonfinite_differ", "broken_x", "broken_p", "zero_x", "zero_p")
_OF_MOMENTS = ("square_x", "square_p", "apart", "sum_x", "sum_p", "xx", "xp", "pp")
_OF_UPDATES = tuple(f"{size}{power}{of}" for of in ("", "_changed") for size in ("update", "relative") for power in ("", "_square"))
COLUMNS = ("values", *_OF_COUNTS, *_OF_MOMENTS, *_OF_UPDATES, "cast", "cast_f16", "cast_bf16")
_AT = {name: at for at, name in enumerate(COLUMNS)}
_OTHER = {"xx": "pp", "pp": "xx"} | {f"{name}_{a}": f"{name}_{b}" for name in ("broken", "zero", "square", "sum") for a, b in ("xp", "px")}
_EXCHANGED = [_AT[_OTHER.get(name, name)] for name in COLUMNS]
CASTS = ("cast", "cast_f16", "cast_bf16")


def _row(sums: PairSums) -> Floats:
    """Return the columns of one pair."""
    plain, moved = sums.sums
    parts = [(first + TOTAL, first + SQUARE) for first in (0, RELATIVE)]
    updates = [row[at] for row in (plain + moved, moved) for part in parts for at in part]
    return np.concatenate([[sums.values], sums.counts, sums.moments, updates, sums.casts])


@dataclass(slots=True)
class Facts:
    """What sums of a tensor do not say of a pair of sides.

    largest: (2, 2) largest update and largest relative one, of all and of changed values; digests: see `pairs.PairSums`; first: the first
    element that differs, -1 if none does.
    """

    largest: Floats = field(default_factory=lambda: np.zeros((2, 2)))
    digests: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(2, np.uint64))
    first: int = -1

    def add(self, sums: PairSums, start: int) -> None:
        """Add the sums of a span that begins at ``start``."""
        changed = sums.sums[1, [LARGEST, RELATIVE + LARGEST]]
        every = np.maximum(sums.sums[0, [LARGEST, RELATIVE + LARGEST]], changed)
        self.largest = np.maximum(self.largest, [every, changed])
        self.digests += sums.digests
        if sums.first >= 0:
            self.first = start + sums.first if self.first < 0 else min(self.first, start + sums.first)


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

    groups: the tensors side by side; weights: (t,) elements that an element read of a tensor stands for; pairs: the sides of each pair.
    kept: number of the group -> (sides, n) values; places: -> changed rows and columns of the side placed.
    """

    def __init__(self, groups: Sequence[Group], plan: Plan, counter: Counter) -> None:
        self.groups, self.plan, self.pairs = groups, plan, tuple(counter.task.pairs)
        self._counter, self._of = counter, {sides: number for number, sides in enumerate(counter.task.pairs)}
        tensors, sides = len(groups), len(groups[0].sides)
        self.columns = np.zeros((tensors, len(self.pairs), len(COLUMNS)))
        self.facts = [[Facts() for _ in self.pairs] for _ in groups]
        self.constant, self.constants = np.zeros((tensors, sides), np.int64), np.array([[[np.inf, -np.inf]] * sides] * tensors)
        self.strata = np.array([plan.strata.get(group.base.name, 0) for group in groups])
        self.weights = np.array(counter.weights)[self.strata]
        self.matrix = np.array([is_matrix(group.base.shape, group.base.role) for group in groups])
        self._layers = _numbered([group.base.layer for group in groups])
        self._roles = _numbered([group.base.role for group in groups])
        self.grams: dict[Layer, Floats] = {}
        self.places: dict[int, ChangedPositions] = {}
        self.overlap: Ints | None = None
        self.looked: list[Looked] = []
        self._kept: dict[int, list[tuple[int, Values]]] = {}
        self._blocks: dict[tuple[int, int], tuple[int, Floats]] = {}

    def add(self, span: Span, counted: Counted) -> None:
        """Add one finished span."""
        number = self._counter.numbers[span.tensor.name]
        if counted.grams is not None:
            layer = span.tensor.layer
            if layer not in self.grams:
                self.grams[layer] = np.zeros_like(counted.grams)
            self.grams[layer] += self.weights[number] * counted.grams
        rows = np.array([_row(sums) for sums in counted.pairs])
        self.columns[number] += rows
        for facts, sums in zip(self.facts[number], counted.pairs, strict=True):
            facts.add(sums, span.start)
        self.constant[number] += counted.constant
        low, high = self.constants[number, :, 0], self.constants[number, :, 1]
        self.constants[number] = np.stack([np.minimum(low, counted.constants[:, 0]), np.maximum(high, counted.constants[:, 1])], axis=1)
        if counted.kept:
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
            self._blocks[number, span.start] = span.count, rows[:, : 1 + len(_OF_COUNTS)]

    def kept(self, number: int) -> Values:
        """Return (sides, n) the values of a group that were kept, in order."""
        found = [values for _, values in sorted(self._kept.get(number, []), key=lambda each: each[0])]
        return np.concatenate(found, axis=1) if found else np.zeros((len(self.groups[0].sides), 0), np.float32)

    def tensors(self, x: int, p: int) -> Sums:
        """Return the sums of each tensor, of the values read, for x of side ``x`` and p of side ``p``."""
        if (x, p) in self._of:
            return Sums(self.columns[:, self._of[x, p]])
        return Sums(self.columns[:, self._of[p, x]][:, _EXCHANGED])

    def sums(self, x: int, p: int, chosen: Any = None, weighed: bool = True) -> Sums:
        """Return the sums over the tensors ``chosen``, (t,), by default all: estimated for all their values, or of those read."""
        rows = self.tensors(x, p).columns * (self.weights[:, None] if weighed and not self.plan.exact else 1.0)
        return Sums((rows if chosen is None else rows[chosen]).sum(axis=0))

    def fact(self, number: int, x: int, p: int) -> Facts:
        """Return the facts of a tensor."""
        found = self.facts[number][self._of[min((x, p), (p, x), key=lambda sides: sides not in self._of)]]
        return found if (x, p) in self._of else Facts(found.largest, found.digests[::-1], found.first)

    def holders(self, side: int) -> NDArray[np.bool_]:
        """Return (t,) which tensors a side has."""
        return np.array([group.sides[side] is not None for group in self.groups])

    def by_layer(self, chosen: Any) -> dict[Layer, NDArray[np.bool_]]:
        """Return (t,) masks of the tensors of each layer, among those ``chosen``."""
        return _masks(self._layers, chosen)

    def by_role(self, chosen: Any) -> dict[str, NDArray[np.bool_]]:
        """Return (t,) masks of the tensors of each role, among those ``chosen``."""
        return _masks(self._roles, chosen)

    def gram(self, sides: Sequence[int]) -> dict[Layer, Floats]:
        """Return, by layer, (GROUPS, k, k) the sums of products of some sides over matrices."""
        rows = list(sides)
        return {layer: grams[:, rows][:, :, rows] for layer, grams in self.grams.items()}

    def of_layer(self, layer: Layer, sides: Sequence[int]) -> Values:
        """Return (k, n) the kept values of some sides in a layer, 0 where a side lacks them; without columns of zeros alone."""
        numbers = [number for number in self._kept if self.groups[number].base.layer == layer]
        found = [self.kept(number)[list(sides)] for number in numbers]
        values = np.nan_to_num(np.concatenate(found, axis=1)) if found else np.zeros((len(sides), 0), np.float32)
        return values[:, values.any(axis=0)]

    def digits(self, side: int) -> int:
        """Return the number of significant bits that the kept values of a side use at most: 24 of fp32, 8 of bf16."""
        used = np.uint32(0)
        for number in self._kept:
            used |= np.bitwise_or.reduce(self.kept(number)[side].view(np.uint32), initial=0)
        mantissa = int(used) & 0x7FFFFF
        return 24 - ((mantissa & -mantissa).bit_length() - 1) if mantissa else 1

    def distribution(self, x: int, p: int, size: str) -> tuple[Distribution, Distribution]:
        """Return the sizes of the updates between two sides, of the pairs read, and estimated for all. size: "update" or "relative"."""
        sides = (x, p) if (x, p) in self._of else (p, x)
        tables, numbers = self._counter.tables(sides), np.arange(len(self.groups))
        largest = np.max([self.facts[number][self._of[sides]].largest for number in numbers], axis=0)[:, int(size == "relative")]
        counts = tables.absolute if size == "update" else tables.relative
        found = []
        for at, sums in ((0, self.sums(x, p, weighed=False)), (-1, self.sums(x, p))):
            zeros = sums["values"] - sums["nonfinite"] - (sums["differ"] - sums["nonfinite_differ"])
            totals, squares = (np.array([sums[f"{size}{power}{of}"] for of in ("", "_changed")]) for power in ("", "_square"))
            found.append(Distribution(counts[at], float(zeros), totals, squares, largest))
        return found[0], found[1]

    def steps(self, x: int, p: int) -> tuple[Floats, Floats]:
        """Return the numbers of pairs by bf16 steps between two sides, of those read, and estimated for all."""
        tables: PairTables = self._counter.tables((x, p) if (x, p) in self._of else (p, x))
        equal = [
            sums["values"] - sums["nonfinite"] - (sums["differ"] - sums["nonfinite_differ"])
            for sums in (self.sums(x, p, weighed=False), self.sums(x, p))
        ]
        found = [tables.steps[0].copy(), tables.steps[-1].copy()]
        for each, zeros in zip(found, equal, strict=True):
            each[0] += zeros
        return found[0], found[1]

    def blocks(self) -> "ReadBlocks | None":
        """Return the blocks of a sample, None if everything was read."""
        return ReadBlocks(self, self._blocks) if self._blocks else None


def _numbered(keys: Sequence[Any]) -> tuple[list[Any], Ints]:
    """Return the different keys, in order, and the number of each entry's."""
    different = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return list(different), np.array([different[key] for key in keys], np.int64)


def _masks(numbered: tuple[list[Any], Ints], chosen: Any) -> dict[Any, NDArray[np.bool_]]:
    keys, numbers = numbered
    return {keys[number]: (numbers == number) & chosen for number in np.unique(numbers[chosen]).tolist()}


class ReadBlocks:
    """The blocks of a sample: independent units, from which intervals of shares follow."""

    def __init__(self, table: Table, blocks: dict[tuple[int, int], tuple[int, Floats]]) -> None:
        places = sorted(blocks)
        self.number = np.array([number for number, _ in places])
        self._table, self._rows = table, np.array([blocks[place][1] for place in places])
        elements = np.array([blocks[place][0] for place in places], np.int64)
        self.units = Blocks(table.strata[self.number], elements, table.plan.population)

    def unchanged(self, x: int, p: int, names: Sequence[str], masks: Iterable[Any] = ()) -> Interval:
        """Return the shares of values that are not in the columns ``names`` (of `Sums`), or of the first one in each of some ``masks``."""
        at = self._table.pairs.index((x, p) if (x, p) in self._table.pairs else (p, x))
        rows = self._rows[:, at].astype(np.int64)
        tested, found = rows[:, :1], np.stack([rows[:, 0] - rows[:, _AT[name]] for name in names], axis=1)
        chosen = np.array([mask[self.number] for mask in masks]).T
        return self.units.shares(tested * chosen, found[:, :1] * chosen) if chosen.size else self.units.shares(tested, found)

    def swallowed(self, x: int, p: int) -> Interval:
        """Return the share of values that differ as stored and not in bf16."""
        at = self._table.pairs.index((x, p) if (x, p) in self._table.pairs else (p, x))
        rows = self._rows[:, at].astype(np.int64)
        return self.units.shares(rows[:, :1], rows[:, [_AT["differ"]]] - rows[:, [_AT["changed"]]])

    def unseen(self) -> tuple[int, float]:
        """Return the number of blocks in strata read in part, and the 95% bound on the share of values of an unseen kind."""
        read = np.bincount(self.units.stratum, self.units.elements, len(self.units.population))
        return int((read < self.units.population)[self.units.stratum].sum()), self.units.unseen()


__all__ = ["CASTS", "COLUMNS", "GROUPS", "Facts", "Layer", "ReadBlocks", "Sums", "Table"]
