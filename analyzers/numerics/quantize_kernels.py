"""Rounds values to a grid under scales and measures the error, in one compiled loop for all formats that matrices are quantized to."""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

# Rules that derive the scale of a tile from its largest magnitude.
AMAX, POWER_OF_TWO, TWO_LEVELS = 0, 1, 2


class Format(NamedTuple):
    """Arguments of `rounding_error`: the rows and columns that share a scale, its rule, and the grid. `DtypeRequest` explains the names."""

    rows: int
    columns: int
    rule: int
    mantissa: int
    least: int
    largest: float


LONGEST_ROW = 1 << 18  # elements; a slab of 128 such rows takes 128 MiB in fp32
_ALL = 1 << 40
FORMATS = {
    "fp8": Format(_ALL, _ALL, AMAX, 3, -6, 448.0),
    "fp8-block": Format(128, 128, AMAX, 3, -6, 448.0),
    "int8": Format(1, _ALL, AMAX, 7, 7, 127.0),
    "int4": Format(1, 128, AMAX, 3, 3, 7.0),
    "mxfp4": Format(1, 32, POWER_OF_TWO, 1, 0, 6.0),
    "nvfp4": Format(1, 16, TWO_LEVELS, 1, 0, 6.0),
}


@njit(nogil=True, cache=True)
def _power(exponent: int) -> Any:
    """Return 2^exponent as fp32, for exponents from -126 to 127."""
    return np.uint32((exponent + 127) << 23).view(np.float32)


@njit(nogil=True, cache=True)
def _round(x: Any, mantissa: int, least: int, largest: Any) -> Any:
    """Round ``x`` to nearest even in a float format of ``mantissa`` bits and exponents from ``least`` on, saturated at ``largest``."""
    bits, dropped = np.float32(x).view(np.uint32), np.uint32(23 - mantissa)
    odd = np.uint32(bits >> dropped) & np.uint32(1)
    nearest = np.uint32(bits + (1 << (22 - mantissa)) - 1 + odd) & np.uint32(0xFFFFFFFF << (23 - mantissa))
    added = np.float32(1.5) * _power(23 + least - mantissa)  # below 2^least steps are equal: those of fp32 next to this number
    rounded = np.float32(np.float32(x + added) - added) if abs(x) < _power(least) else np.uint32(nearest).view(np.float32)
    return min(max(rounded, -largest), largest)


# Sums may be reassociated, which allows vector instructions.
@njit(nogil=True, cache=True, fastmath={"reassoc"})
def _row_error(row: NDArray[np.float32], scale: Any, mantissa: int, least: int, top: Any) -> tuple[float, float, int, int, int]:
    """Return the result of `rounding_error` for values that share one ``scale``."""
    error, square, exact, saturated, count = 0.0, 0.0, 0, 0, 0
    divisor = scale if scale > 0 else np.float32(1)
    for i in range(row.size):
        finite = abs(row[i]) < np.inf
        x = row[i] if finite else np.float32(0)
        scaled = np.float32(x / divisor)
        y = np.float32(_round(scaled, mantissa, least, top) * scale)
        difference = np.float64(y) - np.float64(x)
        error += difference * difference
        square += np.float64(x) * np.float64(x)
        exact += finite and y == x
        saturated += abs(scaled) > top * np.float32(1.000001)  # with a tolerance for scales that were rounded down
        count += finite
    return error, square, exact, saturated, count


@njit(nogil=True, cache=True)
def rounding_error(
    values: NDArray[np.float32],
    tile_rows: int,
    tile_columns: int,
    rule: int,
    mantissa: int,
    least: int,
    largest: float,
    tensor_amax: float,
    per_tensor: bool,
) -> tuple[float, float, int, int, int]:
    """Round ``values`` (rows, columns) to the grid of `_round`, times one scale for each tile, and compare.

    rule: the scale of a tile whose largest finite magnitude is amax. AMAX: amax / largest. POWER_OF_TWO: 2^(floor(log2 amax) - floor(log2
    largest)). TWO_LEVELS: E4M3(amax / largest / t) t with t = tensor_amax / (448 largest). All in fp32, as the formats are used.
    tensor_amax: the largest magnitude in the whole tensor; per_tensor: use it for every tile.

    Returns sums over finite values x of (rounded - x)^2 and x^2, in float64, and the numbers of exact, of saturated and of all finite
    values.
    """
    rows, columns = values.shape
    top = np.float32(largest)
    tensor_scale = np.float32(np.float32(tensor_amax) / np.float32(np.float32(448) * top))
    error, square, exact, saturated, count = 0.0, 0.0, 0, 0, 0
    for first_row in range(0, rows, tile_rows):
        last_row = min(first_row + tile_rows, rows)
        for first in range(0, columns, tile_columns):
            last = min(first + tile_columns, columns)
            amax = np.float32(tensor_amax if per_tensor else 0)
            if not per_tensor:
                for i in range(first_row, last_row):
                    for j in range(first, last):
                        magnitude = abs(values[i, j])
                        if magnitude > amax and magnitude < np.inf:
                            amax = magnitude
            if rule == POWER_OF_TWO:
                exponent: Any = (np.int64(np.float32(amax).view(np.uint32)) >> 23) - 127
                scale = _power(max(exponent - 2, -126))
            elif rule == TWO_LEVELS and tensor_scale > 0:
                ratio = np.float32(np.float32(amax / top) / tensor_scale)
                scale = np.float32(_round(ratio, 3, -6, np.float32(448)) * tensor_scale)
            else:
                scale = np.float32(amax / top)
            for i in range(first_row, last_row):
                found = _row_error(values[i, first:last], scale, mantissa, least, top)
                error, square = error + found[0], square + found[1]
                exact, saturated, count = exact + found[2], saturated + found[3], count + found[4]
    return error, square, exact, saturated, count
