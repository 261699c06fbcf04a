"""Sums of the regular pieces of a chunk (`numerics.piece_kernels`), counted in compiled loops for all pairs of X and its candidates."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.conversions import fp32_of
from analyzers.numerics.count_kernels import count_codes
from analyzers.numerics.piece_kernels import (
    BF16,
    BLOCK,
    CAST,
    EQUAL,
    EXACT,
    F16,
    F32,
    NUMBER,
    SUMS,
    count_casts,
    count_pieces,
    multiply_pieces,
    screen_pieces,
)
from analyzers.parents.rounding import Floats, Ints, rounds

PATTERNS = 1 << 16
_KINDS = {"F32": F32, "F16": F16, "BF16": BF16}
# Values counted at a time, which bounds the memory for values that are widened.
_AT_ONCE = 1 << 20
# Fewer values are counted into the tables of all threads, one thread at a time: adding a thread's own tables to them would take longer.
_FEW = 1 << 18

_own = threading.local()


class PatternTables:
    """Occurrences of bf16 patterns, (candidates, 3, 65536), to which several threads add.

    For each candidate: of X; then of X and of the candidate, where the two patterns differ or nothing follows from their equality. So
    those of the candidate, and of both where they are equal, are differences.
    """

    def __init__(self, candidates: int) -> None:
        self._lock = threading.Lock()
        self.counts: Ints = np.zeros((candidates, 3, PATTERNS), np.int64)

    def add(self, candidate: int, x: NDArray[np.uint16], p: NDArray[np.uint16], telling: bool) -> None:
        """Add pairs of patterns, (n,). telling: whether something follows from their equality."""
        differ = x != p
        parts = (x, x[differ], p[differ]) if telling else (x, x, p)
        with self._lock:
            for part, counts in zip(parts, self.counts[candidate], strict=True):
                count_codes(part, counts)

    def merge(self, other: "PatternTables", mirrored: bool) -> None:
        """Add the counts of ``other``. mirrored: X and the candidate are exchanged there."""
        x, x_else, p_else = np.moveaxis(other.counts, 1, 0)
        self.counts += np.stack([x - x_else + p_else, p_else, x_else], axis=1) if mirrored else other.counts

    def histograms(self, candidate: int) -> Ints:
        """Return (3, 65536) occurrences of each pattern in X, in the candidate, and in both at the same position, if that is telling."""
        x, x_else, p_else = self.counts[candidate]
        return np.stack([x, x - x_else + p_else, x - x_else])

    def count(self, candidate: int, x: NDArray[Any], p: NDArray[Any], *arguments: Any) -> None:
        """Call `count_pieces` with the tables of a candidate, the last but two of its arguments."""
        *others, sums, grams = arguments
        if x.size < _FEW:
            with self._lock:
                count_pieces(x, p, *others, self.counts[candidate], sums, grams)  # type: ignore[call-arg]
            return
        if not hasattr(_own, "counts"):
            _own.counts = np.zeros((3, PATTERNS), np.int64)
        count_pieces(x, p, *others, _own.counts, sums, grams)  # type: ignore[call-arg]
        if len(self.counts) > 1:
            self.settle(candidate)

    def settle(self, candidate: int = 0) -> None:
        """Add the thread's own tables to those of a candidate: at once if there are several, else after each chunk."""
        if hasattr(_own, "counts"):
            with self._lock:
                self.counts[candidate] += _own.counts
            _own.counts[:] = 0


@dataclass(frozen=True, slots=True)
class Regular:
    """The regular ones of consecutive pieces of ``length`` values, the last perhaps shorter, from value ``start`` of the tensor on.

    regular: (pieces,); sums: (candidates, pieces, SUMS), of X and each candidate; grams: (pieces, blocks, 1 + candidates, 1 + candidates)
    sums of products in the blocks of each piece. Those of the other pieces are 0.
    """

    start: int
    length: int
    regular: NDArray[np.bool_]
    sums: Floats
    grams: Floats

    @property
    def starts(self) -> Ints:
        """(pieces,) first value of each piece, in the tensor."""
        return self.start + self.length * np.arange(self.regular.size)


def count_regular(
    codes: Sequence[NDArray[Any]], dtypes: Sequence[str], start: int, length: int, width: int, tables: PatternTables, holders: Sequence[int]
) -> Iterator[tuple[slice, Regular]]:
    """Count the pieces of a chunk: patterns of X, then of each candidate that has the tensor, ``holders``. Yields parts of the chunk.

    start: first value of the chunk in the tensor; length: of a piece; width: of a row. Values beyond the end of a side, and those of
    float64, are in no regular piece.
    """
    whole = codes[0].size
    shared = min(each.size for each in codes) if "F64" not in dtypes and len(codes) > 1 else 0
    shared = shared if shared == whole else shared // length * length
    step = max(1, _AT_ONCE // length) * length
    narrow = set(dtypes) == {"BF16"}
    shift, least = np.uint32(16 if narrow else 0), [np.float32(2.0**-14 if dtype == "F16" else 2.0**-126) for dtype in dtypes]
    for first in range(0, whole, step):
        part = slice(first, min(first + step, whole))
        pieces, counted = -(-(part.stop - first) // length), max(0, min(part.stop, shared) - first)
        differ = np.where(np.arange(pieces) * length < counted, 0, -1)
        sums = np.zeros((len(codes) - 1, pieces, SUMS))
        grams = np.zeros((pieces, -(-length // BLOCK), len(codes), len(codes)))
        if counted:
            sides = [_plain(each[first : first + counted], dtype, narrow) for each, dtype in zip(codes, dtypes, strict=True)]
            found = []
            for side in sides[1:]:
                differ = np.array(differ)
                screen_pieces(sides[0], side, shift, length, width, differ)
                found.append(differ)
            for row, (side, of_pair, candidate) in enumerate(zip(sides[1:], found, holders, strict=True), 1):
                products, of_pair = np.zeros((*grams.shape[:2], 3)), np.where(differ < 0, -1, of_pair)
                tables.count(candidate, sides[0], side, shift, length, of_pair, least[0], least[row], sums[row - 1], products)
                _add_casts(sums[row - 1], sides[0], side, (dtypes[0], dtypes[row]), length)
                grams[:, :, 0, 0], grams[:, :, row, row] = products[:, :, 0], products[:, :, 2]
                grams[:, :, 0, row] = grams[:, :, row, 0] = products[:, :, 1]
            for i in range(2, len(sides)):
                for j in range(1, i):
                    between = np.zeros(grams.shape[:2])
                    multiply_pieces(sides[i], sides[j], shift, length, differ, between)
                    grams[:, :, i, j] = grams[:, :, j, i] = between
        yield part, Regular(start + first, length, sums[0, :, NUMBER] > 0, sums, grams)
    if len(tables.counts) == 1 and whole >= _FEW:
        tables.settle()


def _add_casts(sums: Floats, x: NDArray[Any], p: NDArray[Any], dtypes: tuple[str, str], length: int) -> None:
    """Add the numbers of values that are equal as cast to those of regular pieces, (pieces, SUMS), as `rounding.equal_as_cast` does."""
    exact, number = sums[:, EXACT], sums[:, NUMBER]
    sums[:, CAST:] = np.where(exact == number, number, 0)[:, None]
    sums[:, CAST] = exact
    if set(dtypes) == {"BF16"} or not all(map(rounds, dtypes)):
        return
    sums[:, CAST] = np.where(2 * sums[:, EQUAL] < number, 0, exact)
    kinds = [_KINDS[dtype] for dtype in dtypes]
    for at in np.flatnonzero((exact < number) & (2 * sums[:, EQUAL] >= number)).tolist():
        a, b = (side[at * length : (at + 1) * length] for side in (x, p))
        for way, through in enumerate((F32, F16, BF16)):
            sums[at, CAST + way] = max(count_casts(a, b, kinds[0], through), count_casts(b, a, kinds[1], through))


def _plain(codes: NDArray[Any], dtype: str, narrow: bool) -> NDArray[Any]:
    """Return patterns as the loops require them: contiguous, aligned, writable; of fp32 unless all sides are ``narrow``, of bf16."""
    return np.require(codes if narrow else fp32_of(codes, dtype), requirements=("C", "A", "W"))
