"""The loops of `kernels` in numpy: slower by a factor of ten and more, and ready at once.

Compiled ones take a tenth of a second to load, or, where none are kept yet, many to compile: more than a small checkpoint should take.
Same names, same arguments, same results; `compiled` says what each computes.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.plain_pairs import count_pairs as count_pairs
from analyzers.numerics.plain_pairs import intersections as intersections
from analyzers.numerics.plain_pairs import mark_places as mark_places
from analyzers.numerics.plain_runs import runs_of_few_significands as runs_of_few_significands

_LOW_BITS = (0x1FFF, 0x3FFF, 0x7FFF, 0xFFFF)
_BINADES_OF_A_ROW = 4

# rows, columns, rows of a block, columns of a block, rows of scales, columns of scales: see `kernels.decode_fp8`
Grid = tuple[int, int, int, int, int, int]

# mantissa, first, last, low, exact: see `kernels.take_counts`
Kind = tuple[int, int, int, int, int]


def count_bf16(codes: NDArray[np.uint16], table: NDArray[np.uint32], beside: NDArray[np.int64]) -> None:
    """See `kernels.count_bf16`; ``beside`` is not used."""
    table[0] += np.bincount(codes, minlength=1 << 16).astype(np.uint32)


count_fp16 = count_bf16


def count32(
    codes: NDArray[np.uint32], counts: NDArray[np.uint32], fine: NDArray[np.uint32], beside: NDArray[np.int64]
) -> tuple[int, int, int, float, bool]:
    """See `kernels.count32`; ``fine`` and ``beside`` are not used."""
    index = codes >> np.uint32(16)
    for mask in _LOW_BITS:
        index += (codes & np.uint32(mask) == 0).astype(np.uint32) << np.uint32(16)
    if index.size < counts.size // 16:  # a norm or a bias: a table of its own, counted and added, would take longer than all else
        np.add.at(counts.reshape(-1), index, np.uint32(1))
    else:
        counts += np.bincount(index, minlength=counts.size).astype(np.uint32).reshape(counts.shape)
    magnitudes = codes & np.uint32(0x7FFFFFFF)
    low, high = (magnitudes[magnitudes != 0].min(initial=0xFFFFFFFF), magnitudes.max(initial=0))
    with np.errstate(invalid="ignore"):  # of signalling NaN
        return 0, int(low), int(high), squares(codes.view(np.float32), 1.0), not (codes & np.uint32(0xFFFF)).any()


def take_counts(
    table: NDArray[np.uint32], beside: NDArray[np.int64], kind: Kind, index: NDArray[np.int64], counts: NDArray[np.int64]
) -> int:
    """See `kernels.take_counts`."""
    mantissa, first, last, low, exact = kind
    bins = table.reshape(-1)
    occupied = np.flatnonzero(bins != 0)  # of booleans: five times as fast as of counts
    if last:
        own = occupied[: np.searchsorted(occupied, 1 << 16)]
        exponents = own >> mantissa & last + 1
        if exact:
            magnitudes = own & 0x7FFF
            finite = (magnitudes != 0) & (exponents <= last)
            magnitudes, steps = magnitudes[finite], exponents[finite]
            significands = magnitudes & (1 << mantissa) - 1 | (steps != 0).astype(np.int64) << mantissa
            np.add.at(beside[1], np.maximum(steps, 1), significands**2 * bins[own[finite]].astype(np.int64))
            beside[2, 0] = magnitudes.min(initial=int(beside[2, 0]))
            beside[2, 1] = magnitudes.max(initial=int(beside[2, 1]))
        alike = (exponents >= first) & (exponents <= last) & (own & low != 0 if low else True)
        np.add.at(bins, exponents[alike] << mantissa | 1, _taken(bins, own[alike]))
        occupied = np.flatnonzero(bins != 0)
    index[: occupied.size], counts[: occupied.size] = occupied, _taken(bins, occupied)
    return occupied.size


def _taken(bins: NDArray[np.uint32], index: NDArray[np.int64]) -> NDArray[np.uint32]:
    """What ``bins`` hold, which are cleared."""
    held = bins[index]
    bins[index] = 0
    return held


def squares(values: NDArray[np.floating[Any]], scale: float) -> float:
    """See `kernels.squares`."""
    scaled = values.astype(np.float64) * scale
    return float(np.square(scaled).sum())


def exact_rows32(codes: NDArray[np.uint32], row: int, need: int, narrow: bool) -> tuple[int, int]:
    """See `kernels.exact_rows32`; ``narrow`` is not used."""
    magnitudes = codes & np.uint32(0x7FFFFFFF)
    finite = magnitudes < 0x7F800000
    with np.errstate(invalid="ignore", over="ignore"):
        steps = np.abs(codes.view(np.float32)) * np.float32(2.0**24)
    small = magnitudes < 0x38800000
    not_fp16 = np.where(small, steps != np.rint(steps), (magnitudes >= 0x47800000) | (magnitudes & np.uint32(0x1FFF) != 0))
    in_bf16 = _exact_rows(finite & (magnitudes & np.uint32(0xFFFF) != 0), row)
    in_fp16 = _exact_rows(finite & not_fp16, row)
    return _informative(codes, in_bf16, row, 23, 8, need, 0x10000), _informative(
        codes, in_fp16 & ~in_bf16, row, 23, 8, need, 0x2000, beyond=0xFFFF
    )


def exact_rows16(codes: NDArray[np.uint16], row: int, need: int) -> int:
    """See `kernels.exact_rows16`."""
    magnitudes = codes & np.uint16(0x7FFF)
    bad = (magnitudes >= 0x0400) & (magnitudes < 0x7C00) & (magnitudes & np.uint16(7) != 0)
    return _informative(codes, _exact_rows(bad, row), row, 10, 5, need, 8)


def _fields(codes: NDArray[Any], mantissa: int, exponent: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(stored exponent, fraction) of each code."""
    wide = codes.astype(np.uint64)
    stored = (wide >> np.uint64(mantissa)) & np.uint64((1 << exponent) - 1)
    return stored.astype(np.int64), (wide & np.uint64((1 << mantissa) - 1)).astype(np.int64)


def _exact_rows(bad: NDArray[np.bool_], row: int) -> NDArray[np.bool_]:
    """(rows,) whether none of a row's values is ``bad``."""
    rows = bad.size // row
    return ~np.asarray(bad[: rows * row].reshape(rows, row).any(axis=1))


def _informative(
    codes: NDArray[Any], rows: NDArray[np.bool_], row: int, mantissa: int, exponent: int, need: int, last: int, beyond: int = 0
) -> int:
    """How many of the chosen ``rows`` are informative; see `kernels._informative`."""
    count = 0
    for r in np.flatnonzero(rows).tolist():
        stored, fraction = _fields(codes[r * row : (r + 1) * row], mantissa, exponent)
        informative = (stored != 0) & (stored != (1 << exponent) - 1) & (fraction != 0)
        if beyond:
            informative &= fraction & beyond != 0
        magnitudes = set(((stored << mantissa) | fraction)[informative].tolist())
        # told apart as the kernel does, by 64 slots, so that both count the same rows
        if len(set((stored[informative & (fraction & last != 0)] & 63).tolist())) < _BINADES_OF_A_ROW:
            continue
        count += len({(m * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF) >> 58 for m in magnitudes}) >= need
    return count


def decode_fp8(
    codes: NDArray[np.uint8], start: int, grid: Grid, scales: NDArray[np.float32], base: int,
    table: NDArray[np.float32], out: NDArray[np.float32],
) -> None:  # fmt: skip
    """See `kernels.decode_fp8`."""
    _scaled(table[codes[: out.size]], start, grid, scales, base, out)


def decode_fp4(
    codes: NDArray[np.uint8], start: int, grid: Grid, scales: NDArray[np.float32], base: int,
    table: NDArray[np.float32], out: NDArray[np.float32],
) -> None:  # fmt: skip
    """See `kernels.decode_fp4`."""
    odd = start % 2
    halves = np.stack([codes & np.uint8(15), codes >> np.uint8(4)], axis=1).reshape(-1)[odd : odd + out.size]
    _scaled(table[halves], start, grid, scales, base, out)


def _scaled(
    values: NDArray[np.float32], start: int, grid: Grid, scales: NDArray[np.float32], base: int,
    out: NDArray[np.float32],
) -> None:  # fmt: skip
    rows, columns, block_rows, block_columns, scale_rows, scale_columns = grid
    row, column = np.divmod(np.arange(start, start + out.size), columns)
    matrix, row = np.divmod(row, rows)
    index = (matrix * scale_rows + row // block_rows) * scale_columns + column // block_columns - base
    with np.errstate(all="ignore"):
        np.multiply(values, scales[index], out=out)
