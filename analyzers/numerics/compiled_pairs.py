"""The counting of pairs by compiled loops: which one for which dtypes, and what they need."""

import threading
from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics import plain_pairs
from analyzers.numerics.machine_code import Loop
from analyzers.numerics.pair_cells import (
    ALL,
    BASE_SQUARE,
    CHANGED,
    COUNTS,
    DIFFER,
    GROUP,
    JOINT_CELLS,
    LARGEST,
    MOVED,
    NONFINITE,
    NONFINITE_DIFFER,
    PROBE,
    REACH,
    REST,
    SQUARE,
    SUMS,
    UPDATE_MAX,
    UPDATE_SQUARE,
)
from analyzers.numerics.pair_tables import PairCounts, PairTables

# Number of the first pair, and patterns of the two sides.
Piece = tuple[int, NDArray[Any], NDArray[Any]]

# Pairs widened to fp32 at a time: what they are widened to stays in cache.
PIECE = 1 << 16

# Fewer pairs of bf16 are widened too: looking through the joint cells would take longer than counting them.
FEW = 1 << 14

_count16, _fold, _look_up = (Loop("pair_kernels", name) for name in ("count16", "fold", "look_up"))
_count32 = Loop("pair_blocks", "count32")
_widen = Loop("pair_vectors", "widen")
_mark_places, _intersections = (Loop("place_kernels", name) for name in ("mark_places", "intersections"))

_NO_CELLS = np.zeros(0, dtype=np.uint32)
_NO_WORDS = np.zeros(0, dtype=np.uint64)


class _Scratch(threading.local):
    """What counting needs for a moment, kept for the next time: one for each thread."""

    def __init__(self) -> None:
        self.joint = np.zeros(JOINT_CELLS, dtype=np.uint32)
        self.rest = np.empty((2, REST), dtype=np.uint32)
        self.wide = np.empty((2, PIECE), dtype=np.uint32)


_scratch = _Scratch()


def _bf16_values() -> NDArray[np.float64]:
    """The values of bf16 patterns from -REACH on, those before 0 the negative ones; 0 for infinities and NaN."""
    magnitudes = np.arange(1 << 15, dtype=np.uint32) << np.uint32(16)
    values = np.where(magnitudes < 0x7F800000, magnitudes, 0).astype(np.uint32).view(np.float32).astype(np.float64)
    return np.concatenate([-values[REACH:0:-1], values, np.zeros(REACH)])


_VALUES = _bf16_values()


def count_pairs(
    base: NDArray[Any], tuned: NDArray[Any], dtypes: tuple[str, str], eta: float, tables: PairTables | None,
    changed: NDArray[np.uint64] | None = None,
) -> PairCounts:  # fmt: skip
    """See `plain_pairs.count_pairs`."""
    if "F64" in dtypes:
        return plain_pairs.count_pairs(base, tuned, dtypes, eta, tables, changed)
    places = _NO_WORDS if changed is None else changed
    cells = _NO_CELLS if tables is None else tables.cells(base.size)
    counts, sums = np.zeros(COUNTS, dtype=np.int64), np.zeros(SUMS)
    base, tuned = _plain(base), _plain(tuned)
    whole = base.size // GROUP * GROUP
    if dtypes == ("BF16", "BF16") and base.size > FEW:
        _count_bf16(base[:whole], tuned[:whole], eta, cells, counts, sums, places[: whole // GROUP])
    else:
        for first, w, v in _comparable(base[:whole], tuned[:whole], dtypes):
            here = places[first // GROUP : (first + w.size) // GROUP]
            _count32(w, v, True, eta, cells, counts, sums, here)
    if whole < base.size:
        last = np.zeros((2, GROUP), dtype=np.uint32)  # filled up with pairs of zeros, which count nowhere
        for _, w, v in _pieces(base[whole:], tuned[whole:], dtypes):
            last[0, : w.size], last[1, : w.size] = w, v
        _count32(last[0], last[1], True, eta, cells, counts, sums, places[whole // GROUP :])
    moved, probe, differ, nonfinite, nonfinite_differ = counts[[CHANGED, PROBE, DIFFER, NONFINITE, NONFINITE_DIFFER]].tolist()
    of_all, of_moved = sums[ALL:MOVED].tolist(), sums[MOVED:].tolist()
    if tables is not None:
        tables.add_others(base.size - nonfinite - (differ - nonfinite_differ), nonfinite)
        for changed_only, (total, square, relative, relative_square, largest, relative_largest) in ((False, of_all), (True, of_moved)):
            tables.add_sums(changed_only, (total, square, largest), (relative, relative_square, relative_largest))
    return PairCounts(
        base.size,
        moved,
        probe,
        differ,
        nonfinite,
        max(float(sums[UPDATE_MAX]), of_all[LARGEST]),
        Fraction(float(sums[UPDATE_SQUARE])) + (Fraction(of_all[SQUARE]) if of_all[SQUARE] else 0),
        Fraction(float(sums[BASE_SQUARE])),
    )


def _count_bf16(
    base: NDArray[np.uint16], tuned: NDArray[np.uint16], eta: float, cells: NDArray[np.uint32], counts: NDArray[np.int64],
    sums: NDArray[np.float64], changed: NDArray[np.uint64],
) -> None:  # fmt: skip
    joint, rest = _scratch.joint, _scratch.rest
    span = np.array([1 << 16, 0])
    start = 0
    while start < base.size:
        start, sent = _count16(base, tuned, start, joint, rest, counts, sums, span, changed)
        if sent:
            _count32(rest[0, :sent], rest[1, :sent], False, eta, cells, counts, sums, _NO_WORDS)
    _fold(joint, _VALUES, span, eta, cells, counts, sums)


def mark_places(
    mask: NDArray[np.uint64], first: int, column: int, length: int, columns: NDArray[np.uint64] | None, rows: NDArray[np.bool_]
) -> None:
    """See `plain_pairs.mark_places`."""
    _mark_places(mask, first, column, length, _NO_WORDS if columns is None else columns, rows.view(np.uint8))


def intersections(masks: NDArray[np.uint64]) -> NDArray[np.int64]:
    """See `plain_pairs.intersections`."""
    shared = np.zeros((len(masks), len(masks)), dtype=np.int64)
    _intersections(masks, shared)
    return shared


def _comparable(base: NDArray[Any], tuned: NDArray[Any], dtypes: tuple[str, str]) -> Iterator[Piece]:
    """`_pieces`, but of bf16 and fp32 the patterns themselves, all at once."""
    if set(dtypes) <= {"BF16", "F32"}:
        yield 0, base, tuned
    else:
        yield from _pieces(base, tuned, dtypes)


def _pieces(base: NDArray[Any], tuned: NDArray[Any], dtypes: tuple[str, str]) -> Iterator[Piece]:
    """Numbers of first pairs, and the fp32 patterns of up to `PIECE` pairs from there on. Valid until the next piece."""
    for first in range(0, base.size, PIECE):
        part = slice(first, first + PIECE)
        yield first, _wide(base[part], dtypes[0], 0), _wide(tuned[part], dtypes[1], 1)


def _plain(codes: NDArray[Any]) -> NDArray[Any]:
    """The same, copied if need be: loops take arrays whose elements lie side by side."""
    return np.ascontiguousarray(codes)


def _wide(codes: NDArray[Any], dtype: str, side: int) -> NDArray[np.uint32]:
    """fp32 patterns of a piece; ``side`` tells which memory to use for it."""
    if dtype == "F32":
        return codes
    wide = _scratch.wide[side, : codes.size]
    if dtype == "BF16":
        _widen(codes, wide)
    else:
        _look_up(codes, plain_pairs.fp32_table(dtype), wide)
    return wide


def warm() -> None:
    """Load every loop over pairs, compiled if that was never done."""
    codes: dict[str, NDArray[Any]] = {"BF16": np.arange(FEW + 1, dtype=np.uint16), "F32": np.arange(FEW + 1, dtype=np.uint32)}
    for both in product(codes, codes):
        base, tuned = (codes[dtype] for dtype in both)
        count_pairs(base, tuned, both, 0.5, PairTables())
    for dtype, width in (("BF16", 2), ("F16", 2), ("F8_E4M3", 1)):
        _wide(np.zeros(1, dtype=f"u{width}"), dtype, 0)
    mark_places(np.zeros(1, dtype=np.uint64), 0, 0, GROUP, None, np.zeros(1, dtype=np.bool_))
    intersections(np.zeros((1, 8), dtype=np.uint64))
