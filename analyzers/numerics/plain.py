"""The loops of `kernels` in numpy: slower by a factor of ten and more, and ready at once.

Loading numba takes half a second, which is all the time a small checkpoint should take. Same names, same arguments,
same results; `kernels` says what each computes.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_LOW_BITS = (0x1FFF, 0x3FFF, 0x7FFF, 0xFFFF)
_EXPONENTS_OF_A_GRID = 6
_MAGNITUDES_OF_A_RUN = 20
_BINADES_OF_A_ROW = 4


def count16(codes: NDArray[np.uint16], counts: NDArray[np.uint32]) -> None:
    """See `kernels.count16`."""
    counts[0] += np.bincount(codes, minlength=1 << 16).astype(np.uint32)


def count32(codes: NDArray[np.uint32], counts: NDArray[np.uint32], fine: NDArray[np.uint32]) -> int:
    """See `kernels.count32`; ``fine`` is not used."""
    index = codes >> np.uint32(16)
    for mask in _LOW_BITS:
        index += (codes & np.uint32(mask) == 0).astype(np.uint32) << np.uint32(16)
    counts += np.bincount(index, minlength=counts.size).astype(np.uint32).reshape(counts.shape)
    return 0


def magnitudes32(codes: NDArray[np.uint32]) -> tuple[int, int]:
    """See `kernels.magnitudes32`."""
    magnitudes = codes & np.uint32(0x7FFFFFFF)
    nonzero = magnitudes[magnitudes != 0]
    return int(nonzero.min(initial=0xFFFFFFFF)), int(nonzero.max(initial=0))


def squares(values: NDArray[np.floating[Any]], scale: float) -> float:
    """See `kernels.squares`."""
    scaled = values.astype(np.float64) * scale
    return float(np.square(scaled).sum())


def runs_of_few_significands(
    codes: NDArray[Any], row: int, first: int, mantissa: int, exponent: int, stride: int, out: NDArray[np.int64]
) -> None:
    """See `kernels.runs_of_few_significands`."""
    per_row = (row + 127) // 128
    stored, significand = _fields(codes, mantissa, exponent)
    significand >>= mantissa - 7
    normal = (stored != 0) & (stored != (1 << exponent) - 1)
    for r in range(codes.size // row):
        for k in range(-((first + r) * per_row) % stride, per_row, stride):
            run = slice(r * row + k * 128, min(r * row + k * 128 + 128, (r + 1) * row))
            chosen = normal[run]
            if chosen.sum() < 32:
                continue
            distinct = min(len(set(significand[run][chosen].tolist())), 9)
            spread = len(set((stored[run][chosen] & 63).tolist()))
            different = len(set((codes[run] & np.array((1 << (mantissa + exponent)) - 1, dtype=codes.dtype)).tolist()))
            out[1 if distinct <= 8 and (spread < _EXPONENTS_OF_A_GRID or different < _MAGNITUDES_OF_A_RUN) else distinct] += 1


def exact_rows32(codes: NDArray[np.uint32], row: int, need: int) -> tuple[int, int]:
    """See `kernels.exact_rows32`."""
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
