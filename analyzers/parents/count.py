"""Counts statistics of the values of a model X and its candidates P_1 to P_m, read at the same positions.

Each block of `BLOCK` consecutive values adds to sums per candidate and to a Gram matrix of X and the candidates. The blocks of a layer are
dealt to `GROUPS` groups, the units of the jackknife. Some values are kept for tests that need the fit first.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints import Alignment, Chunk, Span
from analyzers.numerics.conversions import values_of
from analyzers.numerics.piece_kernels import (
    BINADES_P,
    BINADES_X,
    BLOCK,
    CAST,
    EQUAL,
    EXACT,
    FAR,
    NUMBER,
    PRODUCT,
    ZERO_P,
    ZERO_X,
)
from analyzers.parents.regular_pieces import PATTERNS, PatternTables, Regular, count_regular
from analyzers.parents.rounding import FORMATS, THROUGH, Floats, Ints, equal_as_cast, rounded, rounding_error
from analyzers.parents.shared_structure import is_smooth, signs, structured_sums

GROUPS = 32
# Values that are kept together are consecutive: a multiple of RUN, or of SHORT_RUN after a selection.
RUN = 128
SHORT_RUN = 32
# Sums per candidate: number of values, of values equal in bf16, X.X, X.P, P.P, zeros in X only, sum of (x p)^2; for centred signs
# (`signs`): S.S, S.T without structure (`without_structure`), T.T, sum of (s t)^2 without structure, S.T; number, X.X, X.P, P.P and
# sum of (x p)^2 of outliers (`_outlying`), which the same sums before leave out; numbers equal as cast (`THROUGH`).
PAIR_SUMS = 17 + len(THROUGH)
OUTLYING, PRODUCTS, OUTLIERS, STRUCTURED = 12, [2, 3, 4, 6], [13, 14, 15, 16], [7, 8, 9, 10, 11]
_EXCHANGED = [2, 1, 0, 3, 4]  # of those of signs, once X and P are exchanged
SQUARES = [6, 10, 16]
PIECE = 4 * BLOCK  # values at a time: in float64, with copies, in each of many threads
# Approximate number of values whose signs are compared: removing their structure costs a hundred times as much as everything else, and the
# agreement of so many unrelated signs is 0 within 0.001.
_CLEANED = 1 << 20
BEYOND = 1e6  # no weight is this large: a few broken values must not dominate a cosine
# A value that makes up more than this share of both sides is common, so that equal positions prove nothing. 0 is always common.
_COMMON = 1 / 256


@dataclass(slots=True)
class Counted:
    """The counts of one span.

    pairs: (m, PAIR_SUMS); others: (m, 1 + len(THROUGH)) number of values in vectors and constant blocks, and how many are equal as cast;
    broken: the same counts of values that are not finite, or larger than any weight, on either side; exact: (m,) number of all these values
    that are equal as stored. grams: group -> Gram matrix of X and the candidates; rounding: average contribution of rounding X to |X|^2;
    kept: rows of X and the candidates; outliers: number of values that the Gram matrices and ``rounding`` leave out.
    """

    pairs: Floats
    others: Ints
    broken: Ints
    exact: Ints
    grams: dict[int, Floats] = field(default_factory=dict)
    rounding: float = 0.0
    outliers: int = 0
    kept: list[NDArray[Any]] = field(default_factory=list)

    @classmethod
    def empty(cls, candidates: int) -> "Counted":
        """Return the counts of nothing."""
        casts = candidates, 1 + len(THROUGH)
        return cls(np.zeros((candidates, PAIR_SUMS)), np.zeros(casts, np.int64), np.zeros(casts, np.int64), np.zeros(candidates, np.int64))


@dataclass(frozen=True, slots=True)
class Chance:
    """The equal values that chance would give. equal: expected share, the sum of p_k q_k over bf16 patterns, with +0 = -0.

    telling: number of values that can tell whether equality is a coincidence, how many of these are equal, and how many would be by chance.
    Smooth rows and positions at which both sides have the same common value are excluded.
    """

    equal: float | None
    telling: tuple[int, int, float]


class Counter:
    """The work function of a stream; called from several threads.

    Each candidate is compared at positions where it and X have finite values, whatever the others hold. fit: whether to compute Gram
    matrices, over positions at which all candidates have values; a missing tensor counts as 0 in them. keep: share of all sides' values to
    keep; elements: number of values of X to read. patterns: of the compared values, equality of which tells nothing in smooth rows; smooth:
    (m,) number of values in smooth rows. groups: the number and the group of each base tensor; sides: of a Gram matrix, 0 without; run:
    number of values to keep of a piece.
    """

    def __init__(self, alignment: Alignment, candidates: int, fit: bool, keep: float, elements: int) -> None:
        self.groups = {group.base.name: (number, group) for number, group in enumerate(alignment.groups)}
        self.candidates, self.sides = candidates, (1 + candidates) * fit
        self._stride = max(1, round(elements / _CLEANED))
        run = max(keep * PIECE, 1e-9)
        self.run, self._every = ceil(run / RUN) * RUN if keep else 0, max(1, round(RUN / run))
        self._lock = threading.Lock()
        self.patterns = PatternTables(candidates)
        self.smooth: Ints = np.zeros(candidates, np.int64)

    def __call__(self, span: Span, chunks: Iterator[Chunk]) -> Counted:
        """Count all of ``span``."""
        counting = self.begin(span)
        for chunk in chunks:
            counting.add(chunk)
        return counting.take()[0]

    def begin(self, span: Span) -> "Counting":
        """Begin to count a span."""
        number, group = self.groups[span.tensor.name]
        holders = [i for i, side in enumerate(group.tuned) if side is not None]
        return Counting(span, number, self.patterns, [Direction(self, holders, False)])

    def add_smooth(self, candidate: int, number: int) -> None:
        """Count values in smooth rows."""
        with self._lock:
            self.smooth[candidate] += number

    def add_gram(self, counted: Counted, group: int, gram: Floats, places: Any) -> None:
        """Add the Gram matrix of X and some candidates to that of a group. places: of its entries (`places_of`)."""
        if group not in counted.grams:
            counted.grams[group] = np.zeros((self.sides, self.sides))
        counted.grams[group][places] += gram

    def keep(self, counted: Counted, values: Floats, shared: NDArray[np.bool_], holders: Sequence[int], dtypes: Sequence[str]) -> None:
        """Keep those of ``values`` that are ``shared``."""
        chosen = values if shared.all() else values[:, shared]
        chosen = chosen[:, : max(chosen.shape[1] // SHORT_RUN * SHORT_RUN, SHORT_RUN)]
        kept = np.zeros((self.sides, chosen.shape[1]), np.float64 if "F64" in dtypes else np.float32)
        kept[[0, *(1 + i for i in holders)]] = chosen
        counted.kept.append(kept)

    def is_cleaned(self, number: Any) -> Any:
        """Return whether the signs of the piece whose first block is ``number`` are compared without their structure."""
        return number // (PIECE // BLOCK) % self._stride == 0

    def is_kept(self, number: Any) -> Any:
        """Return whether values of the piece whose first block is ``number`` are kept."""
        return (self.run > 0) & (number % self._every == 0)

    def chance(self, candidate: int) -> "Chance":
        """Return the equal values expected by chance."""
        x, p, equal = self._folded(candidate)
        total = float(x.sum())
        common = (np.minimum(x, p) > _COMMON * total) | (np.arange(PATTERNS) == 0)
        telling = int(total - self.smooth[candidate] - equal[common].sum())
        by_chance = float(x[~common] @ p[~common]) / max(1.0, total)
        return Chance(float(x @ p) / total**2 if total else None, (telling, int(equal[~common].sum()), by_chance))

    def _folded(self, candidate: int) -> Floats:
        """Return (3, 65536) the histograms, with -0 counted as +0."""
        counts = self.patterns.histograms(candidate).astype(np.float64)
        counts[:, 0] += counts[:, 0x8000]
        counts[:, 0x8000] = 0
        return counts


class MutualCounter:
    """Counts X as derived from P, and P as derived from X, at once: ``forward`` and ``backward`` have one candidate each."""

    def __init__(self, forward: Counter, backward: Counter) -> None:
        self._forward, self._backward = forward, backward
        self._patterns = PatternTables(1)

    def begin(self, span: Span) -> "Counting":
        """Begin to count a span of X and P."""
        return Counting(
            span, self._forward.groups[span.tensor.name][0], self._patterns,
            [Direction(self._forward, [0], False), Direction(self._backward, [0], True)],
        )  # fmt: skip

    def settle(self) -> None:
        """Give the counters their patterns of regular pieces, once all spans are counted."""
        self._forward.patterns.merge(self._patterns, mirrored=False)
        self._backward.patterns.merge(self._patterns, mirrored=True)


def places_of(holders: Sequence[int], candidates: int) -> Any:
    """Return an index of the rows and columns of X and of the candidates ``holders`` in a Gram matrix of all ``candidates``."""
    rows = [0, *(1 + i for i in holders)]
    return np.ix_(rows, rows) if len(holders) < candidates else ...


class Piece(NamedTuple):
    """A piece of a tensor: dtypes of its sides, length of a row, number of its first block, whether it is of a matrix."""

    dtypes: Sequence[str]
    width: int
    number: int
    matrix: bool


@dataclass(slots=True)
class Direction:
    """One of the sides as X, for ``counter``. holders: candidates that have the tensor; mirrored: the second side is X, the first P."""

    counter: Counter
    holders: list[int]
    mirrored: bool
    places: Any = field(init=False)

    def __post_init__(self) -> None:
        self.places = places_of(self.holders, self.counter.candidates)

    def order(self, sides: Any) -> Any:
        """Return what belongs to the sides, first axis, in the order of the direction: X first."""
        return sides[::-1] if self.mirrored else sides

    def add_regular(self, counted: Counted, dtypes: Sequence[str], pieces: Regular) -> None:
        """Add the sums of regular pieces, apart from Gram matrices."""
        zeros, binades = (ZERO_P, BINADES_P) if self.mirrored else (ZERO_X, BINADES_X)
        sums, squares = pieces.sums.sum(axis=1), self.order(self.order(pieces.grams.sum(axis=(0, 1))).T)
        for row, i in enumerate(self.holders):
            own = sums[row]
            counted.pairs[i, [0, 1, 5]] += own[[NUMBER, EQUAL, zeros]]
            counted.pairs[i, PRODUCTS] += (squares[0, 0], squares[0, 1 + row], squares[1 + row, 1 + row], own[PRODUCT])
            counted.pairs[i, -len(THROUGH) :] += own[CAST:]
            counted.exact[i] += int(own[EXACT])
        kind = FORMATS.get(self.order(dtypes)[0])
        if self.counter.sides and kind is not None:  # the sum of ulp^2 / 12, see `rounding.rounding_error`
            counted.rounding += float(sums[0, binades]) * 4.0**-kind.mantissa_bits / 12

    def add_piece(self, counted: Counted, values: Floats, lengths: Sequence[int], piece: Piece) -> None:
        """Count ``values``, (sides, n), of which each side has its first ``lengths``, NaN beyond."""
        with np.errstate(invalid="ignore"):
            usable = np.abs(values) < BEYOND  # False for NaN
        _count_exact(counted, values, usable, self.holders, lengths)
        constant = _constant(np.where(usable[0], values[0], 0.0)) if piece.matrix else np.ones(values.shape[1], np.bool_)
        if constant.any():
            for row, i in enumerate(self.holders, 1):
                x, p = values[:, constant & usable[0] & usable[row]][[0, row]]
                counted.others[i] += (x.size, *equal_as_cast(x, p, (piece.dtypes[0], piece.dtypes[row])))
            usable &= ~constant
        if usable[0].any():
            values[~usable] = 0.0
            self._count(counted, values, usable, piece)

    def _count(self, counted: Counted, values: Floats, usable: NDArray[np.bool_], piece: Piece) -> None:
        """Add values of matrices, (sides, n), 0 where they are not ``usable``."""
        in_bf16 = np.stack([rounded(each, "BF16") for each in values])
        smooth = is_smooth(signs(values[0], piece.width), values.shape[1] // piece.width)
        if self.holders and not smooth and self.counter.is_cleaned(piece.number):
            counted.pairs[np.ix_(self.holders, STRUCTURED)] += structured_sums(values, piece.width)
        outlying = _outlying(values)
        codes = (in_bf16.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        for row, i in enumerate(self.holders, 1):
            both = usable[0] & usable[row]
            x, p = (values[0], values[row]) if both.all() else (values[0, both], values[row, both])
            cast = equal_as_cast(x, p, (piece.dtypes[0], piece.dtypes[row]))
            equal = ((in_bf16[0] == in_bf16[row]) & both).sum()
            zeroed, far = ((x == 0) & (p != 0)).sum(), outlying[row - 1][both]
            counted.pairs[i] += (x.size, equal, 0, 0, 0, zeroed, *[0] * 5, 0, far.sum(), *[0] * 4, *cast)
            parts = [(PRODUCTS, x[~far], p[~far]), (OUTLIERS, x[far], p[far])] if far.any() else [(PRODUCTS, x, p)]
            for columns, a, b in parts:
                products = a * b
                counted.pairs[i, columns] += (a @ a, products.sum(), b @ b, products @ products)
            self.counter.patterns.add(i, codes[0][both], codes[row][both], telling=not smooth)
            self.counter.add_smooth(i, x.size if smooth else 0)
        self._fit(counted, values, np.all(usable, axis=0), np.any(outlying, axis=0), piece)

    def _fit(
        self, counted: Counted, values: Floats, shared: NDArray[np.bool_], outlying: NDArray[np.bool_], piece: Piece
    ) -> None:  # fmt: skip
        """Add Gram matrices of ``values`` where all sides have them, ``shared``, without outliers; keep a part of all values."""
        counter, holders = self.counter, self.holders
        if not counter.sides or not holders or not shared.any():
            return
        fitted = np.where(shared & ~outlying, values, 0.0)
        padded = np.pad(fitted, ((0, 0), (0, -values.shape[1] % BLOCK)))  # zeros add nothing
        blocks = padded.reshape(len(values), -1, BLOCK).transpose(1, 0, 2)
        for block, gram in enumerate(blocks @ blocks.transpose(0, 2, 1), piece.number):
            counter.add_gram(counted, block % GROUPS, gram, self.places)
        counted.rounding += rounding_error(fitted[0], piece.dtypes[0])
        counted.outliers += int((shared & outlying).sum())
        if counter.is_kept(piece.number):
            counter.keep(counted, values[:, : counter.run], shared[: counter.run], holders, piece.dtypes)


class Counting:
    """The counts of one span in progress: of each direction, ``counted``. number: of the tensor; patterns: of regular pieces."""

    def __init__(self, span: Span, number: int, patterns: PatternTables, directions: Sequence[Direction]) -> None:
        self._number, self._patterns, self._directions = number, patterns, directions
        self._dtypes = [side.counted_as for side in span.sides if side is not None]
        self._matrix = is_matrix(span.tensor.shape, span.tensor.role)
        self._width = span.tensor.shape[-1] if span.tensor.shape else 1
        self._length = piece_length(self._width)
        self._grams: Floats | None = None
        self.counted = [Counted.empty(direction.counter.candidates) for direction in directions]

    def add(self, chunk: Chunk) -> None:
        """Count a chunk."""
        codes = [each for each in chunk.sides if each is not None]
        if not self._matrix:
            for start in range(0, codes[0].size, self._length):
                self._add_piece([each[start : start + self._length] for each in codes], chunk.start + start)
        elif len(codes) > 1:
            tables, holders = self._patterns, self._directions[0].holders
            for part, pieces in count_regular(codes, self._dtypes, chunk.start, self._length, self._width, tables, holders):
                self._add_part([each[part] for each in codes], pieces)

    def take(self) -> list[Counted]:
        """Return the counts of each direction, once all chunks were added."""
        if self._grams is not None:
            groups = np.flatnonzero(self._grams.any(axis=(1, 2))).tolist()
            for direction, counted in zip(self._directions, self.counted, strict=True):
                for group in groups:
                    direction.counter.add_gram(counted, group, direction.order(direction.order(self._grams[group]).T), direction.places)
        return self.counted

    def _add_part(self, codes: Sequence[NDArray[Any]], pieces: Regular) -> None:
        """Add the sums of the regular pieces of a part of a chunk, and count the others."""
        numbers = pieces.starts // BLOCK + self._number
        if pieces.regular.any():
            for direction, counted in zip(self._directions, self.counted, strict=True):
                direction.add_regular(counted, self._dtypes, pieces)
            if self._directions[0].counter.sides:
                self._grams = np.zeros((GROUPS, len(codes), len(codes))) if self._grams is None else self._grams
                blocks = (numbers[:, None] + np.arange(pieces.grams.shape[1])) % GROUPS
                np.add.at(self._grams, blocks.ravel(), pieces.grams.reshape(-1, len(codes), len(codes)))
        edges = [0, *(1 + np.flatnonzero(np.diff(pieces.regular))).tolist(), pieces.regular.size]
        for first, last in pairwise(edges):
            if pieces.regular[first]:
                self._look_into(codes, pieces, numbers[first:last], first)
                continue
            for start in range(first * self._length, min(last * self._length, codes[0].size), self._length):
                self._add_piece([each[start : start + self._length] for each in codes], pieces.start + start)

    def _look_into(self, codes: Sequence[NDArray[Any]], pieces: Regular, numbers: Ints, first: int) -> None:
        """Compare signs of some consecutive regular pieces, from number ``first`` on, and keep values. numbers: of their first blocks."""
        counter, length = self._directions[0].counter, self._length
        for at in np.flatnonzero(counter.is_cleaned(numbers)).tolist():
            start = (first + at) * length
            sums = structured_sums(self._values([each[start : start + length] for each in codes]), self._width)
            for direction, counted in zip(self._directions, self.counted, strict=True):
                counted.pairs[np.ix_(direction.holders, STRUCTURED)] += sums[:, _EXCHANGED] if direction.mirrored else sums
        kept = np.flatnonzero(counter.is_kept(numbers) & (counter.sides > 0))
        whole = kept if counter.run <= length else kept[:0]
        whole = whole[(first + whole + 1) * length <= codes[0].size]
        if whole.size:
            chosen = ((first + whole) * length)[:, None] + np.arange(counter.run)
            self._keep(self._values([each[chosen.ravel()] for each in codes]))
        for at in kept[whole.size :].tolist():
            start = (first + at) * length
            self._keep(self._values([each[start : min(start + length, start + counter.run)] for each in codes]))

    def _keep(self, values: Floats) -> None:
        for direction, counted in zip(self._directions, self.counted, strict=True):
            shared, dtypes = np.ones(values.shape[1], np.bool_), direction.order(self._dtypes)
            direction.counter.keep(counted, direction.order(values), shared, direction.holders, dtypes)

    def _values(self, codes: Sequence[NDArray[Any]]) -> Floats:
        """Return (sides, n) the values of patterns, NaN where a side ends earlier, as a resized embedding may."""
        values = np.full((len(codes), codes[0].size), np.nan)
        for row, (each, dtype) in enumerate(zip(codes, self._dtypes, strict=True)):
            values[row, : each.size] = values_of(each, dtype)
        return values

    def _add_piece(self, codes: Sequence[NDArray[Any]], start: int) -> None:
        """Count one piece, from value ``start`` of the tensor on, in each direction."""
        values, lengths = self._values(codes), [each.size for each in codes]
        for direction, counted in zip(self._directions, self.counted, strict=True):
            piece = Piece(direction.order(self._dtypes), self._width, start // BLOCK + self._number, self._matrix)
            direction.add_piece(counted, np.array(direction.order(values)), direction.order(lengths), piece)


def piece_length(width: int) -> int:
    """Return the number of values counted at a time of a tensor with rows of ``width``: whole rows, unless they are longer."""
    return max(1, PIECE // width) * width if width <= PIECE else PIECE


def is_matrix(shape: Sequence[int], role: str) -> bool:
    """Return whether a tensor's values are compared: those of norms and biases are not."""
    return role != "norm" and len(shape) > 1 and min(shape[-2:]) > 1


def _count_exact(counted: Counted, values: Floats, usable: NDArray[np.bool_], holders: Sequence[int], lengths: Sequence[int]) -> None:
    """Count the values, (sides, n), that are equal as stored, and those that are not finite on both sides. A NaN equals any NaN."""
    for row, i in enumerate(holders, 1):
        x, p = values[0, : lengths[row]], values[row, : lengths[row]]
        same = x == p
        broken = ~(usable[0] & usable[row])[: lengths[row]]
        if broken.any():
            same |= np.isnan(x) & np.isnan(p)
            counted.broken[i] += (broken.sum(), *[int(same[broken].sum())] * len(THROUGH))
        counted.exact[i] += int(same.sum())


def _outlying(values: Floats) -> NDArray[np.bool_]:
    """Return (m, n) where a candidate differs from X by more than `FAR` typical values, for (1 + m, n) ``values``.

    The typical value of a side is the geometric mean of those that are not 0, which a few outliers hardly change; that of the larger side
    counts.
    """
    present = values != 0
    exponents = np.frexp(values)[1].sum(axis=1, where=present) / np.maximum(present.sum(axis=1), 1)
    typical = np.exp2(np.maximum(exponents[0], exponents[1:]))
    found: NDArray[np.bool_] = np.abs(values[1:] - values[0]) > FAR * typical[:, None]
    return found


def _constant(x: Floats) -> NDArray[np.bool_]:
    """Return (n,) whether a value's block is constant, as in tensors that were never trained: such blocks say nothing about descent."""
    starts = np.arange(0, x.size, BLOCK)
    same = np.maximum.reduceat(x, starts) == np.minimum.reduceat(x, starts)
    return np.repeat(same, np.diff(np.append(starts, x.size)))
