"""Tells how each tensor of a model comes from a candidate, from the sums of the pass: equal, rounded, affine, reordered, and so on."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple, Protocol

import numpy as np

from analyzers.checkpoints import Checkpoint, Group
from analyzers.comparison.counting import Floats
from analyzers.comparison.parents.exact_values import FORMATS, rounded
from analyzers.comparison.parents.likeness import Likeness
from analyzers.comparison.parents.report import AS_STORED, RELATED_PART, Conversion, Relation
from analyzers.comparison.parents.words import TENSORS
from analyzers.comparison.table import CASTS, Sums, Table
from analyzers.core.notes import Note
from analyzers.core.tensor_words import dtype_name

# Their order: a cast between two of them rounds to the less precise.
_PRECISION = {"F8_E5M2": 0, "F8_E4M3": 0, "BF16": 1, "F16": 2, "F32": 3}
# Largest relative error of rounding to each format, else bf16's.
_UNIT_ROUNDOFF = {"F16": 2.0**-11, "F32": 2.0**-24}
# Largest residual of X = f P + o, in units of |X|; least distance of f or 1 / f from 1, and of o from 0 in units of |X|; and of both in
# units of a residual that exceeds rounding: training moves them as well, but leaves more than a factor explains.
_RESIDUAL, _FACTOR, _OFFSET, _EXPLAINS = 0.06, 0.002, 0.2, 10
# The least distance of the factor of a vector from 1: training moves the values of a norm together.
_OF_VECTOR = 0.1
# Share of the elements in blocks with a difference from which on a tensor as a whole is a function of its source.
_MOST = 0.9
# Least squared correlation of a tensor with a source that was scaled, or to which something was added.
_CORRELATED = 0.9
# Largest squared residual of X = f P in a vector, in units of its variance.
_OF_SPREAD = 0.005
# Runs of values that share a scale, the distance of their factors from 1, and how many have it.
_RUN, _OFF_GRID, _USUAL, _RUNS = 32, 0.1, 0.5, 4
# Cosine of what differs below which it is another tensor's, and above which a vector may still resemble its source; deviations of chance
# by which the correlation of two vectors shows it.
_LOST, _ALIKE, _BEYOND = 0.5, 0.5, 4

# Shares of neighbouring pairs: the most that a step function may invert or split, and the least that it merges.
_INVERTED, _MERGED = 0.005, 0.02
STEPPED = 16  # the fewest values that share a scale


class Judged(NamedTuple):
    """The relation of a tensor or a part of one to its source: see `Conversion`."""

    relation: Relation
    to: str | None = None
    factor: float | None = None
    offset: float | None = None
    note: Note | None = None

    @property
    def kind(self) -> tuple[Relation, str | None, Note | None]:
        """What parts of a tensor have in common if they are one row."""
        return self.relation, self.to, self.note


class QuantizedSide(Protocol):
    """What is known of the quantized tensors of a side: see `copies.Copy`. numbers: of their groups."""

    numbers: list[int]
    adds_one: bool

    def judge(self, number: int) -> Judged: ...
    def beside(self, number: int) -> Judged | None: ...
    def unexplained(self, number: int) -> int: ...


@dataclass(frozen=True, slots=True)
class _Line:
    """X = factor P + offset over the differing blocks of a tensor, by least squares. residual: in units of |X|."""

    factor: float
    offset: float
    residual: float


class Relations:
    """How the tensors of side ``x`` come from those of side ``p``. copy: judges quantized ones; numbers: of the groups compared."""

    def __init__(self, table: Table, likeness: Likeness, x: int, p: int, copy: QuantizedSide | None = None) -> None:
        self._copy = copy
        self._table, self._likeness, self._x, self._p = table, likeness, x, p
        self._sums, self._digests, self._first = table.tensors(x, p), table.digests(x, p), table.first(x, p)
        self.numbers: list[int] = np.flatnonzero(table.holders(x, p) & (self._sums["values"] > 0)).tolist()
        self._related = likeness.agreement(x, p)
        self._found: dict[int, Judged] = {}

    def of(self, number: int) -> Judged:
        """Return the relation of a tensor."""
        if number not in self._found:
            self._found[number] = self._judge(number)
        return self._found[number]

    def exceptions(self, number: int) -> int:
        """Count the values of a tensor that are not the source's, once rounded to a dtype of either, or to its grids."""
        row = Sums(self._sums.columns[number])
        if self._copy is not None and number in self._copy.numbers and self.of(number).relation == "rounded":
            return self._copy.unexplained(number)
        return int(max(row["values"] - max(row[name] for name in CASTS), row["broken_x"]))

    def _judge(self, number: int) -> Judged:
        """Return the relation of a tensor."""
        table, row = self._table, Sums(self._sums.columns[number])
        values, differ = int(row["values"]), int(row["differ"])
        if not differ:
            return Judged("equal")
        dtypes = [table.tensor(number, side).counted_as for side in (self._x, self._p)]
        narrow = min(dtypes, key=lambda dtype: _PRECISION.get(dtype, 0))
        if set(dtypes) == {"BF16", "F16"} and 2 * differ < values:
            narrow = "F16"  # fp16 holds most values of bf16, while bf16 holds few of fp16
        cast = next((name for name in ("cast", "cast_bf16", "cast_f16", "cast_apart") if row[name] == values), None)
        if broken := int(row["broken_x"]):
            return Judged("non-finite", note=TENSORS.note("non-finite", values=broken))
        if cast == "cast_apart":
            return Judged("rounded", to=dtype_name(dtypes[0]), note=TENSORS.note("apart", to=dtype_name(dtypes[1])))
        if cast is not None and (cast != "cast" or dtypes[0] != dtypes[1]):
            through = {"cast": narrow, "cast_f16": "F16", "cast_bf16": "BF16"}[cast]
            zeros = int(row["zero_x"])
            return Judged("rounded", to=dtype_name(through), note=TENSORS.note("some-zeros", values=zeros) if zeros else None)
        low, high = table.constants[number, self._x].tolist()
        if low == high and values > 1 and table.constant[number, self._x] >= values:
            return Judged("constant", note=TENSORS.note("constant", value=low)) if low else Judged("zero")
        if self._copy is not None and number in self._copy.numbers:
            return self._copy.judge(number)
        if (scaled := self._scaled(number, row, narrow)) is not None:  # the same values, too, if they were negated
            return scaled
        if table.plan.exact and self._digests[number, 0] == self._digests[number, 1]:
            return Judged("reordered")
        if (other := self._elsewhere.get(self._digests[number, 0])) is not None and self._is_apart(number):
            return Judged("reordered", note=TENSORS.note("of-another", name=self._table.tensor(other, self._p).name))
        if (rows := self._first_rows(number, row)) is not None:
            shape = table.groups[number].base.shape
            return Judged("truncated", note=TENSORS.note("first-rows", rows=rows, all=prod(shape[:-1])))
        return self._changed(number, row)

    @cached_property
    def _elsewhere(self) -> dict[np.uint64, int]:
        """Map the digest of a tensor of the source to its number; of those that differ in every block, whose digests are of all."""
        numbers = [number for number in self.numbers if self._table.plan.exact and self._is_apart(number)]
        return {self._digests[number, 1]: number for number in numbers}

    def _is_apart(self, number: int) -> bool:
        """Return whether a tensor and its source differ in every block."""
        return bool(self._sums["apart"][number] == self._sums["values"][number])

    def _first_rows(self, number: int, row: Sums) -> int | None:
        """Return the number of first rows that are the source's, if the others do not resemble it, as trained rows would; else None."""
        shape, first = self._table.groups[number].base.shape, int(self._first[number])
        width = shape[-1] if len(shape) > 1 else 1
        rows, rest = first // width, int(row["values"]) - first
        if not self._table.plan.exact or rows < 1 or len(shape) < 2 or row["differ"] < _MOST * rest:
            return None
        if 2 * self._table.constant[number, self._p] > first:  # rows of a constant are no one's
            return None
        if self._table.groups[number].base.role in ("embedding", "head") and 2 * first > row["values"]:  # the last rows: new tokens
            return None
        zeroed = row["zero_x"] >= _MOST * rest
        return rows if zeroed or row["xp"] <= _LOST * np.sqrt(row["xx"] * row["pp"]) else None

    def _line(self, row: Sums, with_offset: bool) -> _Line | None:
        number, xx, xp, pp = float(row["apart"]), float(row["xx"]), float(row["xp"]), float(row["pp"])
        if number < _MOST * row["values"] or not xx or not pp:
            return None
        if not with_offset:
            return _Line(xp / pp, 0.0, float(np.sqrt(max(0.0, xx - xp * xp / pp) / xx)))
        x, p = float(row["sum_x"]) / number, float(row["sum_p"]) / number
        _, of_x, of_p, both = _deviations(row)
        if of_p <= 0 or of_x <= 0 or both * both < _CORRELATED * of_x * of_p:
            return None
        factor = both / of_p
        return _Line(factor, x - factor * p, float(np.sqrt(max(0.0, of_x - factor * both) / xx)))

    def _scaled(self, number: int, row: Sums, dtype: str) -> Judged | None:
        """Return the relation if X is a factor times P plus a constant, but for rounding; None if not."""
        roundoff, matrix = _UNIT_ROUNDOFF.get(dtype, 2.0**-8), bool(self._table.matrix[number])
        line = self._line(row, with_offset=False)
        if line is not None and line.residual**2 < 1 - _CORRELATED and (matrix or self._tells(row, line)):
            apart = max(abs(line.factor - 1), abs(1 / line.factor - 1))
            if apart > (_FACTOR if matrix else _OF_VECTOR) and (line.residual <= roundoff or apart > _EXPLAINS * line.residual):
                return Judged("affine", factor=line.factor)
        line = self._line(row, with_offset=True)
        if line is not None and line.residual < _RESIDUAL:
            size = float(np.sqrt(row["xx"] / row["apart"]))
            if abs(line.offset) > max(_OFFSET, _EXPLAINS * line.residual) * size:
                added = self._copy is not None and self._copy.adds_one and self._table.groups[number].base.role == "norm"
                as_stored = added and max(abs(line.factor - 1), abs(line.offset - 1)) <= _RESIDUAL
                return Judged("affine", factor=line.factor, offset=line.offset, note=TENSORS.note("plus-one") if as_stored else None)
        return self._scaled_in_runs(number) if matrix else None

    def _tells(self, row: Sums, line: _Line) -> bool:
        """Return whether a factor explains how a vector varies: values of a norm are so similar that any other norm is nearly c P."""
        return bool((line.residual**2) * float(row["xx"]) < _OF_SPREAD * _deviations(row)[1])

    def _scaled_in_runs(self, number: int) -> Judged | None:
        """Return the relation if each run of values is a factor of its own times the source, as without the scales of its blocks."""
        kept = self._table.kept(number)[[self._x, self._p]].astype(np.float64)
        runs = kept.shape[1] // _RUN
        if runs < _RUNS or not np.isfinite(kept).all():
            return None
        x, p = kept[:, : runs * _RUN].reshape(2, runs, _RUN)
        xx, xp, pp = (x * x).sum(axis=1), (x * p).sum(axis=1), (p * p).sum(axis=1)
        used = (xx > 0) & (pp > 0)
        if used.sum() < _RUNS:
            return None
        factor = xp[used] / pp[used]
        residual = np.sqrt(np.maximum(0, xx[used] - factor * xp[used]) / xx[used])
        apart = np.abs(factor - 1)
        if (residual <= _RESIDUAL).mean() < _MOST or (apart > _OFF_GRID).mean() < _USUAL:
            return None
        whole = float(xp.sum() / pp.sum())
        if xx.sum() - whole * xp.sum() <= _RESIDUAL**2 * xx.sum():
            return Judged("affine", factor=whole)
        return Judged("affine", factor=None, note=TENSORS.note("by-block", low=float(factor.min()), high=float(factor.max())))

    def _changed(self, number: int, row: Sums) -> Judged:
        """Return whether X is a step function of P, resembles it beyond chance, or holds other values."""
        if self._table.matrix[number] and row["differ"] > row["values"] / 2 and self._is_step_function(number):
            return Judged("rounded", note=TENSORS.note("steps"))
        if row["zero_x"] == row["differ"]:
            return Judged("changed", note=TENSORS.note("some-zeros", values=int(row["zero_x"])))
        if self._copy is not None and (beside := self._copy.beside(number)) is not None:
            return beside
        resembles = self._resembles if self._table.matrix[number] else self._vector_resembles
        return Judged("changed" if 2 * row["differ"] < row["values"] or resembles(number, row) else "other")

    def _is_step_function(self, number: int) -> bool:
        x, p = self._table.kept(number)[[self._x, self._p]].astype(np.float64)
        dtype = self._table.tensor(number, self._x).counted_as
        return bool(np.isfinite(p).all() and is_step_function(steps_of(x, p, dtype)))

    def _resembles(self, number: int, row: Sums) -> bool:
        """Return whether a matrix resembles its source: by signs, if there are enough."""
        agreement = self._likeness.of_tensor(self._x, self._p, number)
        return agreement.beyond(RELATED_PART, 4) if agreement.value is not None else self._line(row, with_offset=True) is not None

    def _vector_resembles(self, number: int, row: Sums) -> bool:
        """Return whether a vector resembles its source. Norms of unrelated models are alike: they are told apart by how they vary."""
        count, of_x, of_p, both = _deviations(row)
        if not row["pp"]:  # biases start at zero
            return True
        if count and both > _BEYOND / np.sqrt(count) * np.sqrt(of_x * of_p):
            return True
        alike = float(row["xp"]) > _ALIKE * float(np.sqrt(row["xx"] * row["pp"]))
        return alike and (self._related.value is None or self._related.beyond(RELATED_PART, 4))

    def rows(self, model: Checkpoint, ref: str, tied: Collection[str]) -> Iterator[Conversion]:
        """Yield a row for each tensor of ``model``, or for each part if its parts differ in relation; damaged tensors first.

        ref: the candidate; tied: names of copies of the embedding, which count once.
        """
        by_stored: dict[str, list[int]] = {}
        for number in self.numbers:
            by_stored.setdefault(self.stored(number), []).append(number)
        found = [row for numbers in by_stored.values() for row in self._rows_of(numbers, ref)]
        known = {*tied} | {self.stored(number) for number, held in enumerate(self._table.holders(self._p)) if held}
        for tensor in model.tensors:
            if tensor.name not in known and not tensor.buffer and not tensor.holds_scales and tensor.elements and tensor.has_values:
                found.append(Conversion(name=tensor.name, sources=(), form="", relation="unmatched", values=0, exceptions=0))
        yield from sorted(found, key=lambda row: ORDER.index(row.relation))

    def stored(self, number: int) -> str:
        """Return the name of the stored tensor of a group."""
        group = self._table.groups[number]
        return group.stored[self._x] if group.stored[self._x] else group.base.name

    def name(self, number: int) -> str:
        """Return the name of the tensor of a group, with that of the part."""
        return self._table.tensor(number, self._x).name

    def _rows_of(self, numbers: list[int], ref: str) -> Iterator[Conversion]:
        first = self.of(numbers[0])
        together = all(self.of(number).kind == first.kind for number in numbers)
        for each in [numbers] if together else [[number] for number in numbers]:
            found = self.of(each[0])
            groups = [self._table.groups[number] for number in each]
            cosines = [] if found.relation in ("equal", "rounded") else [Sums(self._sums.columns[number]).cosine for number in each]
            yield Conversion(
                name=self.stored(each[0]) if together else self.name(each[0]),
                source=ref,
                sources=tuple(self._table.tensor(number, self._p).name for number in each),
                form="; ".join(dict.fromkeys(self._form(group) or AS_STORED for group in groups)),
                relation=found.relation,
                to=found.to,
                factor=found.factor,
                offset=found.offset,
                values=int(self._sums["values"][each].sum()),
                exceptions=sum(map(self.exceptions, each)),
                cosine=min((cosine for cosine in cosines if cosine is not None), default=None),
                note=found.note,
            )

    def _form(self, group: Group) -> str:
        """Return the layout in which the two sides match: through the first side, if neither is it."""
        return ", ".join(filter(None, (group.forms[side - 1] for side in dict.fromkeys((self._x, self._p)) if side)))


def _deviations(row: Sums) -> tuple[float, float, float, float]:
    """Return the number of values in differing blocks, and the sums there of x^2, of p^2 and of x p, about the means."""
    count = float(row["apart"])
    x, p = float(row["sum_x"]) / max(1.0, count), float(row["sum_p"]) / max(1.0, count)
    return count, float(row["xx"]) - count * x * x, float(row["pp"]) - count * p * p, float(row["xp"]) - count * x * p


def steps_of(x: Floats, p: Floats, dtype: str) -> tuple[float, float] | None:
    """Return the shares of neighbours in the order of P that X inverts or tells apart where P does not, and that it merges; None without.

    Within runs of `STEPPED` values, per pair of neighbours that differ in P.

    p: cast to ``dtype`` first, that of X.
    """
    size = min(x.size, p.size) // STEPPED * STEPPED
    if not size:
        return None
    x, p = x[:size].reshape(-1, STEPPED), (rounded(p[:size], dtype) if dtype in FORMATS else p[:size]).reshape(-1, STEPPED)
    order = np.argsort(p, axis=1, kind="stable")
    x, p = np.take_along_axis(x, order, 1), np.take_along_axis(p, order, 1)
    rising, step = np.diff(p, axis=1) > 0, np.diff(x, axis=1)
    pairs = max(1, int(rising.sum()))
    no_function = np.where(rising, step < 0, step != 0)
    return float(no_function.sum()) / pairs, float((rising & (step == 0)).sum()) / pairs


def is_step_function(steps: tuple[float, float] | None) -> bool:
    """Return whether X is a step function of P, like a quantized copy: by the shares of neighbours inverted and merged."""
    return steps is not None and steps[0] <= _INVERTED and steps[1] >= _MERGED


ORDER: tuple[Relation, ...] = (
    "non-finite", "zero", "constant", "truncated", "other", "affine", "reordered", "changed", "unmatched", "rounded", "equal",
)  # fmt: skip
