"""Describes how each tensor of the model comes from the best candidate: proves faithful conversions, and names the others.

Counts of all values decide what is equal or rounded. Only tensors that are neither are read again, to determine what happened to them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints import Alignment, Checkpoint, Chunk, Group, Reader, Span, Step, stream
from analyzers.core.notes import Note
from analyzers.core.tensor_words import dtype_name
from analyzers.grids import SourceOnGrid, describe
from analyzers.numerics.conversions import values_of
from analyzers.parents.collect import DOMINATE, cosine, outliers_carry
from analyzers.parents.count import OUTLYING, is_matrix
from analyzers.parents.facts import OnGrid
from analyzers.parents.proof import is_step_function, monotone
from analyzers.parents.report import Conversion, Relation
from analyzers.parents.rounding import THROUGH, Floats, Ints
from analyzers.parents.words import TENSORS

_PRECISION = {"BF16": 1, "F16": 2, "F32": 3, "F64": 4}  # Their order: a cast between two of them rounds to the less precise.
# Residual of X = c P, in units of |X|, that rounding alone may leave; and least distance of c from 1 for a scaled tensor.
_ROUNDING, _FACTOR = 0.01, 0.002
# Largest relative error of rounding to each format, else bf16's; and least distance of c from 1 in units of a residual that exceeds it:
# weight decay, and updates in proportion to the weights, move c as well, but leave more than a factor explains.
_UNIT_ROUNDOFF, _EXPLAINS = {"F16": 2.0**-11, "F32": 2.0**-24, "F64": 2.0**-53}, 3
# Largest distance of the factor from 1 on a coarser grid, and the residual that rounding to the coarsest grid, two bits, may leave.
_OFF_GRID, _COARSE = 0.1, 0.6
# Least cosine of a trained matrix with its source, and largest of lost rows.
_TRAINED, _LOST = 0.9, 0.5
# Largest residual of X = c P in a vector, in units of its range: values of a norm are so similar that any other norm is nearly c P.
_OF_RANGE = 0.02
# Most tensors whose values are searched for in other tensors, and most tensors that are read again.
_SEARCHED, _EXAMINED = 400, 2_000
_KEPT = 1 << 14  # values of each tensor that are tested for a step function, and for grids unless all are read
_MAY_BE_ON_GRID = 32  # tensors that look trained are tested for grids, the others only if one of these is on a grid
_ALIKE = 0.98


@dataclass(slots=True)
class TensorOrigin:
    """The result of reading a tensor X and its source P again. moments: n, X.X, X.P, P.P over values that are finite on both sides.

    rows: equal rows from the first on; equal_rows: all equal rows; equal_square: sum of squares of equal values; broken: values that are
    finite in P only; low, high: extremes of X; grid: of X, with the numbers of values compared, of those that are P's
    rounded on it, and of ties among these (`SourceOnGrid`).
    """

    moments: Floats = field(default_factory=lambda: np.zeros(4))
    rows: int = 0
    equal_rows: int = 0
    equal_square: float = 0.0
    all_rows: int = 0
    broken: int = 0
    zeros: int = 0
    zero_rows: int = 0
    source_zeros: int = 0
    low: float = np.inf
    high: float = -np.inf
    kept: list[Floats] = field(default_factory=list)
    grid: tuple[str, int, int, int] | None = None


class Judged(NamedTuple):
    """The relation of a piece to its source: see `Conversion`."""

    relation: Relation
    exceptions: int
    to: str | None = None
    factor: float | None = None
    note: Note | None = None


class Examination:
    """The tensors of the model that differ from those of candidate ``column``, and what is wrong with them.

    tensors, moments: see `Sums`. stepwise: whether the model is a step function of the candidate, like a quantized copy; exact: whether all
    values of such a copy are compared.
    """

    def __init__(
        self,
        alignment: Alignment,
        column: int,
        tensors: Mapping[str, Ints],
        moments: Mapping[str, Floats],
        stepwise: bool,
        exact: bool,
    ) -> None:
        self._alignment, self._column, self._stepwise, self._exact = alignment, column, stepwise, exact
        self._counts = {name: counts[column].tolist() for name, counts in tensors.items()}
        self._moments = {name: sums[column] for name, sums in moments.items()}
        self._found: dict[str, TensorOrigin] = {}
        self._swapped: dict[str, str] = {}

    @property
    def pieces(self) -> list[Group]:
        """Groups in which the candidate has a tensor and values were read."""
        return [g for g in self._alignment.groups if g.tuned[self._column] is not None and self._counts.get(g.base.name, [0])[0]]

    @property
    def _converted(self) -> bool:
        """True if most values are the source's."""
        equal, number = self.equal_values
        return 2 * equal >= number

    @property
    def equal_values(self) -> tuple[int, int]:
        """Number of values in tensors that are entirely equal or rounded, and number of values read."""
        counts = [(self._counts[group.base.name][0], self._relation(group)[0] in ("equal", "rounded")) for group in self.pieces]
        return sum(number for number, same in counts if same), sum(number for number, _ in counts)

    def _relation(self, group: Group) -> tuple[Relation, str | None, int]:
        """Return the relation (equal, rounded or differs), the format, and the number of exceptions."""
        number, *casts, exact = self._counts[group.base.name]
        tuned = group.tuned[self._column]
        assert tuned is not None
        if exact == number:
            return "equal", None, 0
        narrow = self._narrow(group)
        if {group.base.counted_as, tuned.counted_as} == {"BF16", "F16"} and 2 * exact > number:
            narrow = "F16"  # fp16 holds most values of bf16, while bf16 holds few of fp16
        for through, same in zip(THROUGH, casts, strict=True):
            if same == number and (group.base.counted_as != tuned.counted_as or through):
                return "rounded", dtype_name(through or narrow), 0
        return "differs", None, number - max(exact, *casts)

    def _narrow(self, group: Group) -> str:
        """Return the less precise of the dtypes of a tensor and its source."""
        tuned = group.tuned[self._column]
        assert tuned is not None
        return min((group.base.counted_as, tuned.counted_as), key=lambda dtype: _PRECISION.get(dtype, 0))

    def _looks_trained(self, group: Group) -> bool:
        """Return whether the values differ like those of a trained matrix: in one direction, and more of them after longer training."""
        number, xx, xp, pp, zeroed = self._moments[group.base.name][[0, 2, 3, 4, 5]].tolist()
        if not number or not xx or not pp or number < self._counts[group.base.name][0]:
            return False
        cosine = xp / np.sqrt(xx * pp)
        scaled = _is_scaled(xp / pp, np.sqrt(max(0.0, 1 - cosine**2)), self._narrow(group))
        equal = self._counts[group.base.name][-1] / number
        return bool(cosine > _TRAINED and not scaled and zeroed <= number / 100 and not (equal > 0.3 and cosine < 0.999))

    def examine(self, sides: Sequence[Checkpoint], names: Sequence[str]) -> Iterator[Step[TensorOrigin]]:
        """Read again the tensors that may be damaged; yield the steps of the stream. Each argument lists the model and the candidate."""
        differing = [group for group in self.pieces if self._relation(group)[0] == "differs"][:_EXAMINED]
        trained = [group for group in differing if self._looks_trained(group)]
        names_of_trained = {group.base.name for group in trained}
        others = [group for group in differing if group.base.name not in names_of_trained]
        first = len(trained) if self._stepwise else _MAY_BE_ON_GRID
        nbytes = requests = 0
        for groups in (others + trained[:first], trained[first:]):
            for step in stream(sides, [self._span(group, group.base.name in names_of_trained) for group in groups], _look, names):
                if step.span is not None and step.result is not None:
                    self._found[step.span.tensor.name] = step.result
                step = replace(step, bytes_read=nbytes + step.bytes_read, requests=requests + step.requests)
                yield step
            nbytes, requests = (step.bytes_read, step.requests) if groups else (nbytes, requests)
            if not self.on_grids:
                break

    def _span(self, group: Group, trained: bool) -> Span:
        elements = min(group.base.elements, _elements(group, self._column))
        whole = not trained or (self._stepwise and self._exact)
        return Span((group.base, group.tuned[self._column]), 0, elements if whole else min(elements, _KEPT))

    def search(self, readers: Sequence[Reader]) -> None:
        """Find tensors whose values are those of another tensor of the candidate. readers: of the model and the candidate."""
        odd = [group for group in self.pieces if group.base.name in self._found and self._judge(group).relation == "differs"]
        alike: dict[tuple[int, ...], list[Group]] = {}
        for group in [group for group in odd if not self._looks_trained(group)][:_SEARCHED]:
            alike.setdefault(group.base.shape, []).append(group)
        for shape, groups in alike.items():
            row = shape[-1] if shape else 1
            sources = [(group.base.shape, group.tuned[self._column]) for group in self._alignment.groups]
            candidates = [tuned for of, tuned in sources if tuned is not None and of == shape][:_EXAMINED]
            ours = readers[0].read([(group.base, row) for group in groups], spread=False)
            theirs = readers[1].read([(each, row) for each in candidates], spread=False)
            size = ours[groups[0].base].size
            candidates = [each for each in candidates if theirs[each].size == size]
            if size <= 8 or not candidates:
                continue
            x, p = (np.stack([values[each] for each in of]) for values, of in ((ours, [g.base for g in groups]), (theirs, candidates)))
            for group, similar in zip(groups, _standardised(x) @ _standardised(p).T >= _ALIKE, strict=True):
                found = (candidates[i].name for i in np.flatnonzero(similar) if candidates[i] is not group.tuned[self._column])
                if (name := next(found, None)) is not None:
                    self._swapped[group.base.name] = name

    def _judge(self, group: Group) -> Judged:
        """Return the relation of one piece to its source, and what is special about it."""
        relation, to, exceptions = self._relation(group)
        found = self._found.get(group.base.name)
        if relation != "differs" or found is None:
            return Judged(relation, exceptions, to)
        _, xx, xp, pp = found.moments.tolist()
        matrix = is_matrix(group.base.shape, group.base.role)
        if found.broken:
            return Judged("non-finite", exceptions, note=TENSORS.note("non-finite", values=found.broken))
        if not matrix and found.low == found.high in (0, 1) and not self._converted:
            return Judged("differs", exceptions, note=TENSORS.note("untrained", value=found.low))
        if found.low == found.high == 0:
            return Judged("zeroed", exceptions)
        if found.low == found.high:
            return Judged("constant", exceptions, note=TENSORS.note("constant", value=found.low))
        if group.base.name in self._swapped:
            return Judged("swapped", exceptions, note=TENSORS.note("swapped", name=self._swapped[group.base.name]))
        if _is_truncated(found):
            return Judged("truncated", exceptions, note=TENSORS.note("first-rows", rows=found.rows, all=found.all_rows))
        factor = xp / pp if pp else 0.0
        residual = np.sqrt(max(0.0, xx - factor * xp) / xx) if xx else 1.0
        spread = found.high - found.low
        in_range = residual * np.sqrt(xx / max(1.0, found.moments[0])) < _OF_RANGE * spread
        if _is_scaled(factor, residual, self._narrow(group)) and (matrix or in_range):
            return Judged("scaled", exceptions, factor=factor)
        if 0 < found.zero_rows < found.all_rows:
            return Judged("truncated", exceptions, note=TENSORS.note("zero-rows", rows=found.zero_rows, all=found.all_rows))
        if found.grid is not None:
            grid, compared, nearest, ties = found.grid
            note = TENSORS.note("on-grid", grid=grid, values=compared, nearest=nearest, ties=ties)
            return Judged("on-grid", 0, grid, note=note) if nearest == compared else Judged("differs", exceptions, note=note)
        steps = monotone(np.concatenate(found.kept, axis=1), group.base.counted_as) if found.kept else None
        if matrix and steps and is_step_function(steps):
            if abs(factor - 1) > _OFF_GRID or residual > _COARSE:
                return Judged("scaled", exceptions, factor=factor, note=TENSORS.note("steps"))
            return Judged("on-grid", 0, note=TENSORS.note("steps"))
        if found.zeros > found.source_zeros and exceptions == found.zeros - found.source_zeros:
            return Judged("differs", exceptions, note=TENSORS.note("some-zeros", values=exceptions))
        return Judged("differs", exceptions)

    @property
    def on_grids(self) -> Mapping[str, OnGrid]:
        """The values compared, by the grid of the model's values."""
        sums: dict[str, OnGrid] = {}
        for found in self._found.values():
            if found.grid is not None:
                grid, *counts = found.grid
                sums[grid] = OnGrid(*map(sum, zip(sums.get(grid, (0, 0, 0)), counts, strict=True)))
        return sums

    def outliers(self, group: Group) -> int:
        """Return the number of outliers if they carry most of the squared distance from the source, else 0."""
        moments = self._moments[group.base.name]
        return int(moments[OUTLYING]) if outliers_carry(moments) >= DOMINATE else 0

    def _cosine(self, group: Group) -> float | None:
        """Return the cosine of a piece with its source, over all values that were read, without outliers that dominate it."""
        found = self._found.get(group.base.name)
        if self.outliers(group):
            return cosine(self._moments[group.base.name])
        xx, xp, pp = found.moments[1:].tolist() if found is not None else self._moments[group.base.name][[2, 3, 4]].tolist()
        return float(np.clip(xp / np.sqrt(xx * pp), -1, 1)) if xx > 0 and pp > 0 else None

    def rows(self, model: Checkpoint) -> Iterator[Conversion]:
        """Yield a row for each tensor of ``model``, or for each part if its parts differ in relation; damaged tensors first."""
        by_stored: dict[str, list[Group]] = {}
        for group in self.pieces:
            by_stored.setdefault(group.stored[0], []).append(group)
        found = [row for groups in by_stored.values() for row in self._rows_of(groups)]
        known = {tensor.name for tensor in self._alignment.unmatched[self._column].tied}
        known |= {group.stored[0] for group in self._alignment.groups if group.tuned[self._column] is not None}
        for tensor in model.tensors:
            if tensor.name not in known and not tensor.buffer and not tensor.holds_scales and tensor.elements and tensor.has_values:
                found.append(Conversion(name=tensor.name, sources=(), form="", relation="unmatched", values=0, exceptions=0))
        yield from sorted(found, key=lambda row: _ORDER.index(row.relation))

    def _rows_of(self, groups: Sequence[Group]) -> Iterator[Conversion]:
        judged = {group.base.name: self._judge(group) for group in groups}
        first = judged[groups[0].base.name]
        together = all((each.relation, each.to, each.note) == (first.relation, first.to, first.note) for each in judged.values())
        for each in [groups] if together else [[group] for group in groups]:
            found = judged[each[0].base.name]
            forms = dict.fromkeys(group.forms[self._column] or "as stored" for group in each)
            outliers = sum(map(self.outliers, each)) if found.relation == "differs" else 0
            yield Conversion(
                name=each[0].stored[0] if together else each[0].base.name,
                sources=tuple(side.name for group in each if (side := group.tuned[self._column]) is not None),
                form="; ".join(forms),
                relation=found.relation,
                to=found.to,
                factor=found.factor,
                values=sum(self._counts[group.base.name][0] for group in each),
                exceptions=sum(judged[group.base.name].exceptions for group in each),
                cosine=None if found.relation in ("equal", "rounded") else min(filter(None, map(self._cosine, each)), default=None),
                outliers=outliers,
                note=found.note or (TENSORS.note("outliers", values=outliers) if outliers else None),
            )


_ORDER: tuple[Relation, ...] = (
    "non-finite", "zeroed", "constant", "truncated", "swapped", "scaled", "differs", "unmatched", "on-grid", "rounded", "equal",
)  # fmt: skip


def _elements(group: Group, column: int) -> int:
    tuned = group.tuned[column]
    return 0 if tuned is None else tuned.elements


def _look(span: Span, chunks: Iterator[Chunk]) -> TensorOrigin:
    """Compare X and P, row by row."""
    x_side, p_side = span.sides
    assert x_side is not None and p_side is not None
    found, row = TensorOrigin(), x_side.shape[-1] if len(x_side.shape) > 1 else 1
    kept, source = 0, SourceOnGrid(x_side)
    for chunk in chunks:
        x, p = (values_of(np.asarray(codes), side.counted_as) for codes, side in zip(chunk.sides, (x_side, p_side), strict=True))
        finite = np.isfinite(x) & np.isfinite(p)
        source.add(np.asarray(chunk.sides[0]), chunk.start, p)
        found.broken += int((~np.isfinite(x) & np.isfinite(p)).sum())
        found.zeros, found.source_zeros = found.zeros + int((x == 0).sum()), found.source_zeros + int((p == 0).sum())
        found.low, found.high = min(found.low, float(np.nanmin(x, initial=np.inf))), max(found.high, float(np.nanmax(x, initial=-np.inf)))
        if kept < _KEPT:
            found.kept.append(np.stack((x, p))[:, : _KEPT - kept][:, finite[: _KEPT - kept]])
            kept += x.size
        x, p = np.where(finite, x, 0.0), np.where(finite, p, 0.0)
        found.equal_square += float(np.square(x[x == p]).sum())
        with np.errstate(over="ignore"):
            found.moments += (finite.sum(), x @ x, x @ p, p @ p)
        _count_rows(found, x == p, row)
        if x.size % row == 0 and row > 1:
            found.zero_rows += int(((x.reshape(-1, row) == 0).all(axis=1) & (p.reshape(-1, row) != 0).any(axis=1)).sum())
    if source.grid is not None and source.compared:
        found.grid = describe(source.grid), source.compared, source.nearest, source.ties
    return found


def _is_scaled(factor: float, residual: float, dtype: str) -> bool:
    """Return whether X is ``factor`` times P but for rounding to ``dtype``. residual: |X - factor P| / |X|."""
    apart = abs(factor - 1)
    rounded = residual <= _UNIT_ROUNDOFF.get(dtype, 2.0**-8)
    return apart > _FACTOR and residual < _ROUNDING and (rounded or apart > _EXPLAINS * residual)


def _is_truncated(found: TensorOrigin) -> bool:
    """Return whether only the first rows are the source's, and the others do not resemble it, as trained rows would."""
    rest, equal = found.all_rows - found.rows, found.equal_rows - found.rows
    if not found.rows or not rest or equal > min(found.all_rows // 50, (rest - 1) // 2):
        return False
    xx, xp, pp = (max(0.0, float(each) - found.equal_square) for each in found.moments[1:])
    return bool(xp <= _LOST * np.sqrt(xx * pp))


def _count_rows(found: TensorOrigin, same: NDArray[np.bool_], row: int) -> None:
    """Count whole rows of a chunk: chunks hold whole rows if a row fits into a chunk."""
    if same.size % row:
        return
    rows: NDArray[np.bool_] = np.all(same.reshape(-1, row), axis=1)
    if found.rows == found.all_rows:
        found.rows += len(rows) if rows.all() else int(np.argmin(rows))
    found.equal_rows += int(rows.sum())
    found.all_rows += len(rows)


def _standardised(rows: Floats) -> Floats:
    """Return rows of values, less their means and of norm 1: products are correlations. 0 for values that are all equal, or not finite."""
    usable = np.asarray(np.isfinite(rows).all(axis=1))
    values = np.where(usable[:, None], rows, 0.0)
    usable &= np.ptp(values, axis=1) > 0
    values = (values - values.mean(axis=1, keepdims=True)) * usable[:, None]
    standard: Floats = values / np.maximum(np.sqrt(np.square(values).sum(axis=1, keepdims=True)), 1e-300)
    return standard
