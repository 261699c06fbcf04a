"""Counts statistics of the values of a model X and its candidates P_1 to P_m, read at the same positions.

Each block of `BLOCK` consecutive values adds to sums per candidate and to a Gram matrix of X and the candidates. The blocks of a layer are
dealt to `GROUPS` groups, the units of the jackknife. Some values are kept for tests that need the fit first. Models in the memory
of a GPU are counted there (`count_on_device`).
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints import Alignment, Chunk, Span
from analyzers.numerics.conversions import values_of
from analyzers.parents.rounding import THROUGH, Floats, Ints, equal_as_cast, rounded, rounding_error
from analyzers.parents.shared_structure import without_structure

BLOCK = 4096
GROUPS = 32
# Values that are kept together are consecutive: a multiple of RUN, or of SHORT_RUN after a selection.
RUN = 128
SHORT_RUN = 32
# Sums per candidate: number of values, of values equal in bf16, X.X, X.P, P.P, zeros in X only, sum of (x p)^2; for centred signs
# (`signs`): S.S, S.T without structure (`without_structure`), T.T, sum of (s t)^2 without structure, S.T; number, X.X, X.P, P.P and
# sum of (x p)^2 of outliers (`_outlying`), which the same sums before leave out; numbers equal as cast (`THROUGH`).
PAIR_SUMS = 17 + len(THROUGH)
OUTLYING, PRODUCTS, OUTLIERS, STRUCTURED = 12, [2, 3, 4, 6], [13, 14, 15, 16], slice(7, 12)
SQUARES = [6, 10, 16]
_PATTERNS = 1 << 16
PIECE = 4 * BLOCK  # values at a time: in float64, with copies, in each of many threads
# Approximate number of values whose signs are compared: removing their structure costs ten times as much as everything else.
_CLEANED = 1 << 23
BEYOND = 1e6  # no weight is this large: a few broken values must not dominate a cosine
FAR = 16  # typical values; a larger difference cannot be an update of a weight
# A value that makes up more than this share of both sides is common, so that equal positions prove nothing. 0 is always common.
_COMMON = 1 / 256
# Rows are smooth if each resembles the next by this much, as in tables of positions: their equality is neither coincidence nor proof.
SMOOTH, FEWEST_ROWS = 0.2, 4


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
    keep; elements: number of values of X to read. histograms: (3, m, 65536) occurrences of each bf16 pattern in X and in each candidate,
    over the compared values, and in both at the same position, without smooth rows; smooth: (m,) number of values in smooth rows.
    groups: the number and the group of each base tensor; sides: of a Gram matrix, 0 without; run: number of values to keep of a piece.
    """

    def __init__(self, alignment: Alignment, candidates: int, fit: bool, keep: float, elements: int) -> None:
        self.groups = {group.base.name: (number, group) for number, group in enumerate(alignment.groups)}
        self.candidates, self.sides = candidates, (1 + candidates) * fit
        self._stride = max(1, round(elements / _CLEANED))
        run = max(keep * PIECE, 1e-9)
        self.run, self._every = ceil(run / RUN) * RUN if keep else 0, max(1, round(RUN / run))
        self._lock = threading.Lock()
        self.histograms: Ints = np.zeros((3, candidates, _PATTERNS), np.int64)
        self.smooth: Ints = np.zeros(candidates, np.int64)

    def __call__(self, span: Span, chunks: Iterator[Chunk]) -> Counted:
        """Count all of ``span``."""
        number, group = self.groups[span.tensor.name]
        counted = Counted.empty(self.candidates)
        holders = [i for i, side in enumerate(group.tuned) if side is not None]
        dtypes = [side.counted_as for side in group.sides if side is not None]
        matrix = is_matrix(group.base.shape, group.base.role)
        width = span.tensor.shape[-1] if span.tensor.shape else 1
        piece = piece_length(width)
        for chunk in chunks:
            codes = [each for each in chunk.sides if each is not None]
            patterns: list[NDArray[np.uint16]] = []
            masks: list[NDArray[np.bool_]] = []
            for start in range(0, codes[0].size, piece):
                stop = min(start + piece, codes[0].size)
                values = np.full((len(codes), stop - start), np.nan)
                lengths = [max(0, min(stop, each.size) - start) for each in codes]  # a resized embedding may end earlier
                with np.errstate(invalid="ignore"):
                    for row, (each, dtype, length) in enumerate(zip(codes, dtypes, lengths, strict=True)):
                        if length:
                            values[row, :length] = values_of(each[start : start + length], dtype)
                usable = np.abs(values) < BEYOND  # False for NaN
                _count_exact(counted, values, usable, holders, lengths)
                constant = _constant(np.where(usable[0], values[0], 0.0)) if matrix else np.ones(stop - start, np.bool_)
                if constant.any():
                    for row, i in enumerate(holders, 1):
                        x, p = values[:, constant & usable[0] & usable[row]][[0, row]]
                        counted.others[i] += (x.size, *equal_as_cast(x, p, (dtypes[0], dtypes[row])))
                    usable &= ~constant
                if usable[0].any():
                    values[~usable] = 0.0
                    block = (chunk.start + start) // BLOCK + number
                    patterns.append(self._count(counted, values, usable, holders, dtypes, width, block))
                    masks.append(usable)
            if patterns:
                self._tally(holders, np.concatenate(patterns, axis=1), np.concatenate(masks, axis=1))
        return counted

    def _tally(self, holders: Sequence[int], patterns: NDArray[np.uint16], usable: NDArray[np.bool_]) -> None:
        """Add bf16 patterns, (1 + sides, n), where ``usable``.

        Takes a whole chunk at a time, since a histogram has as many bins as a chunk has values.

        The last row marks smooth rows.
        """
        smooth = patterns[-1] != 0
        for row, i in enumerate(holders, 1):
            both = usable[0] & usable[row]
            x, p = patterns[0][both], patterns[row][both]
            counts = [np.bincount(each, minlength=_PATTERNS) for each in (x, p, x[(x == p) & ~smooth[both]])]
            with self._lock:
                self.histograms[:, i] += counts
                self.smooth[i] += int((smooth & both).sum())

    def _count(
        self,
        counted: Counted,
        values: Floats,
        usable: NDArray[np.bool_],
        holders: Sequence[int],
        dtypes: Sequence[str],
        width: int,
        number: int,
    ) -> NDArray[np.uint16]:
        """Add values of matrices, (sides, n); number: index of the first block.

        Returns their bf16 patterns, and which are in smooth rows.
        """
        in_bf16 = np.stack([rounded(each, "BF16") for each in values])
        smooth = is_smooth(signs(values[0], width), values.shape[1] // width)
        if holders and not smooth and self.is_cleaned(number):
            counted.pairs[holders, STRUCTURED] += structured_sums(values, width)
        outlying = _outlying(values)
        for row, i in enumerate(holders, 1):
            both = usable[0] & usable[row]
            x, p = (values[0], values[row]) if both.all() else (values[0, both], values[row, both])
            cast = equal_as_cast(x, p, (dtypes[0], dtypes[row]))
            equal = ((in_bf16[0] == in_bf16[row]) & both).sum()
            zeroed, far = ((x == 0) & (p != 0)).sum(), outlying[row - 1][both]
            counted.pairs[i] += (x.size, equal, 0, 0, 0, zeroed, *[0] * 5, 0, far.sum(), *[0] * 4, *cast)
            parts = [(PRODUCTS, x[~far], p[~far]), (OUTLIERS, x[far], p[far])] if far.any() else [(PRODUCTS, x, p)]
            for columns, a, b in parts:
                products = a * b
                counted.pairs[i, columns] += (a @ a, products.sum(), b @ b, products @ products)
        self._fit(counted, values, np.all(usable, axis=0), np.any(outlying, axis=0), holders, dtypes, number)
        patterns = (in_bf16.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return np.concatenate([patterns, np.full((1, values.shape[1]), smooth, np.uint16)])

    def _fit(
        self,
        counted: Counted,
        values: Floats,
        shared: NDArray[np.bool_],
        outlying: NDArray[np.bool_],
        holders: Sequence[int],
        dtypes: Sequence[str],
        number: int,
    ) -> None:
        """Add Gram matrices of ``values`` where all sides have them, ``shared``, without outliers; keep a part of all values."""
        if not self.sides or not holders or not shared.any():
            return
        fitted = np.where(shared & ~outlying, values, 0.0)
        padded = np.pad(fitted, ((0, 0), (0, -values.shape[1] % BLOCK)))  # zeros add nothing
        blocks = padded.reshape(len(values), -1, BLOCK).transpose(1, 0, 2)
        for block, gram in enumerate(blocks @ blocks.transpose(0, 2, 1), number):
            self.add_gram(counted, block % GROUPS, gram, holders)
        counted.rounding += rounding_error(fitted[0], dtypes[0])
        counted.outliers += int((shared & outlying).sum())
        if self.is_kept(number):
            self.keep(counted, values[:, : self.run], shared[: self.run], holders, dtypes)

    def add_gram(self, counted: Counted, group: int, gram: Floats, holders: Sequence[int]) -> None:
        """Add the Gram matrix of X and its ``holders`` to that of a group."""
        rows = [0, *(1 + i for i in holders)]
        counted.grams.setdefault(group, np.zeros((self.sides, self.sides)))[np.ix_(rows, rows)] += gram

    def keep(self, counted: Counted, values: Floats, shared: NDArray[np.bool_], holders: Sequence[int], dtypes: Sequence[str]) -> None:
        """Keep those of ``values`` that are ``shared``."""
        chosen = values[:, shared]
        chosen = chosen[:, : max(chosen.shape[1] // SHORT_RUN * SHORT_RUN, SHORT_RUN)]
        kept = np.zeros((self.sides, chosen.shape[1]), np.float64 if "F64" in dtypes else np.float32)
        kept[[0, *(1 + i for i in holders)]] = chosen
        counted.kept.append(kept)

    def is_cleaned(self, number: int) -> bool:
        """Return whether the signs of the piece whose first block is ``number`` are compared without their structure."""
        first = number // (PIECE // BLOCK)
        return first == 0 or first % self._stride == 0

    def is_kept(self, number: int) -> bool:
        """Return whether values of the piece whose first block is ``number`` are kept."""
        return self.run > 0 and number % self._every == 0

    def chance(self, candidate: int) -> "Chance":
        """Return the equal values expected by chance."""
        x, p, equal = self._folded(candidate)
        total = float(x.sum())
        common = (np.minimum(x, p) > _COMMON * total) | (np.arange(_PATTERNS) == 0)
        telling = int(total - self.smooth[candidate] - equal[common].sum())
        by_chance = float(x[~common] @ p[~common]) / max(1.0, total)
        return Chance(float(x @ p) / total**2 if total else None, (telling, int(equal[~common].sum()), by_chance))

    def _folded(self, candidate: int) -> Floats:
        """Return (3, 65536) the histograms, with -0 counted as +0."""
        counts = self.histograms[:, candidate].astype(np.float64)
        counts[:, 0] += counts[:, 0x8000]
        counts[:, 0x8000] = 0
        return counts


def piece_length(width: int) -> int:
    """Return the number of values counted at a time of a tensor with rows of ``width``: whole rows, unless they are longer."""
    return max(1, PIECE // width) * width if width <= PIECE else PIECE


def is_matrix(shape: Sequence[int], role: str) -> bool:
    """Return whether a tensor's values are compared: those of norms and biases are not."""
    return role != "norm" and len(shape) > 1 and min(shape[-2:]) > 1


def signs(values: Floats, width: int) -> Floats:
    """Return (n,) the signs of ``values``, in rows of ``width``, after centring by row and column, then centred in the same way.

    Features that unrelated matrices share (non-negative values, large channels, rows of different norms, a diagonal) affect the means, or a
    few large values; signs contain neither. 0 where a value is 0, and in rows of a single value, since masks are shared too.
    """
    table = values[: values.size // width * width].reshape(-1, width) if values.size >= width else values.reshape(1, -1)
    mask = (table != 0) & (table.max(axis=1, keepdims=True) > table.min(axis=1, keepdims=True))
    result = np.zeros(values.size)
    result[: table.size] = (_centred(np.sign(_centred(table, np.ones_like(table))) * mask, mask) * mask).ravel()
    return result


def _centred(table: Floats, mask: Any) -> Floats:
    """Subtract from ``table`` its means of rows and columns over ``mask``; from a single row, only its own mean."""
    rows = table.sum(axis=1, keepdims=True) / np.maximum(mask.sum(axis=1, keepdims=True), 1)
    centred: Floats = table - rows
    if len(table) > 1:
        centred += table.sum() / max(mask.sum(), 1) - table.sum(axis=0) / np.maximum(mask.sum(axis=0), 1)
    return centred


def structured_sums(values: Floats, width: int) -> Floats:
    """Return (m, 5) the sums of `STRUCTURED` of the first of ``values``, (1 + m, n) in rows of ``width``, with each other one."""
    (s, rest), *others = (without_structure(signs(each, width), width) for each in values)
    return np.array(
        [(s @ (s * (t != 0)), (rest * other).sum(), t @ (t * (s != 0)), np.square(rest * other).sum(), s @ t) for t, other in others]
    )


def is_smooth(directions: Floats, rows: int) -> bool:
    """Return whether each of ``rows`` rows of centred signs resembles the next."""
    if rows < FEWEST_ROWS:
        return False
    table = directions[: directions.size // rows * rows].reshape(rows, -1)
    return bool((table[1:] * table[:-1]).sum() > SMOOTH * (table[1:] ** 2).sum())


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
