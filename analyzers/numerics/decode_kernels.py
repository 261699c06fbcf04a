"""The loops that compute values from 8- and 4-bit codes and their scales."""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(nogil=True, cache=True, error_model="numpy")
def decode_fp8(
    codes: NDArray[np.uint8], start: int, grid: Any, scales: NDArray[np.float32], base: int, table: NDArray[np.float32],
    out: NDArray[np.float32],
) -> None:  # fmt: skip
    """Set ``out`` (n,) to the values of ``codes`` (n,), which are elements of a tensor from number ``start`` on: table[code] x scale.

    The tensor is (matrices, rows, columns), row-major, and each of its matrices is cut into blocks that share a scale. grid:
    (rows, columns, rows of a block, columns of a block, rows of scales, columns of scales); scales: those from number ``base``
    on, of (matrices, rows of scales, columns of scales), row-major; table: (256,) the value of each code.
    """
    columns, block_columns = grid[1], grid[3]
    i = 0
    while i < out.size:
        row, column = divmod(start + i, columns)
        first = _first_scale(row, grid) - base
        end = min(i + columns - column, out.size)
        block = column // block_columns
        edge = i + (block + 1) * block_columns - column
        while i < end:
            stop = min(edge, end)
            scale = scales[first + block]
            part, values = codes[i:stop], out[i:stop]
            for j in range(values.size):
                values[j] = table[part[j]] * scale
            i = stop
            edge += block_columns
            block += 1


@njit(nogil=True, cache=True, error_model="numpy")
def decode_fp4(
    codes: NDArray[np.uint8], start: int, grid: Any, scales: NDArray[np.float32], base: int, table: NDArray[np.float32],
    out: NDArray[np.float32],
) -> None:  # fmt: skip
    """`decode_fp8` for codes of 4 bits, the first of a byte in its low half; ``codes`` begins with the byte that holds ``start``.

    Blocks have an even number of columns, so that none begins inside a byte. table: (16,) the value of each code.
    """
    columns, block_columns = grid[1], grid[3]
    i = 0
    odd = start % 2
    while i < out.size:
        row, column = divmod(start + i, columns)
        first = _first_scale(row, grid) - base
        end = min(i + columns - column, out.size)
        block = column // block_columns
        edge = i + (block + 1) * block_columns - column
        while i < end:
            stop = min(edge, end)
            scale = scales[first + block]
            if (odd + i) % 2:
                out[i] = table[codes[(odd + i) // 2] >> 4] * scale
                i += 1
            part, values = codes[(odd + i) // 2 : (odd + stop) // 2], out[i:stop]
            for j in range(part.size):
                values[2 * j] = table[part[j] & 15] * scale
                values[2 * j + 1] = table[part[j] >> 4] * scale
            if (odd + stop) % 2 and i < stop:
                out[stop - 1] = table[codes[(odd + stop) // 2] & 15] * scale
            i = stop
            edge += block_columns
            block += 1


@njit(nogil=True, cache=True)
def _first_scale(row: int, grid: Any) -> Any:
    """Number of the scale that ``row`` begins with."""
    matrix, inside = divmod(row, grid[0])
    return (matrix * grid[4] + inside // grid[2]) * grid[5]
