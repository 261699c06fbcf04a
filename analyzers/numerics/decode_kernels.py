"""Computes values from 8- and 4-bit codes and their scales in a compiled loop."""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(nogil=True, cache=True, error_model="numpy")
def decode(
    codes: NDArray[np.uint8], start: int, grid: Any, scales: NDArray[np.float32], base: int, table: NDArray[np.float32],
    out: NDArray[np.float32],
) -> None:  # fmt: skip
    """Set ``out`` (n,) to the values of elements ``start`` to ``start + n`` of a tensor: table[code] x scale.

    The tensor is (matrices, rows, columns), row-major, and each of its matrices is cut into blocks that share a scale. grid: (rows,
    columns, rows of a block, columns of a block, rows of scales, columns of scales); scales: those from index ``base`` on of an array
    (matrices, rows of scales, columns of scales), row-major. table: the value of each code, (256,) for codes of 8 bits, (16,) for codes of
    4 bits, two per byte, the first in the low half; codes: the bytes from the one that holds ``start`` on.
    """
    rows, columns, block_rows, block_columns, scale_rows, scale_columns = grid
    packed = table.size == 16
    odd = start % 2
    i = 0
    while i < out.size:
        row, column = divmod(start + i, columns)
        matrix, row = divmod(row, rows)
        block = column // block_columns
        scale = scales[(matrix * scale_rows + row // block_rows) * scale_columns + block - base]
        stop = min(i + min((block + 1) * block_columns, columns) - column, out.size)
        if packed:
            for j in range(i + (odd + i) % 2, stop - 1, 2):
                byte = codes[(odd + j) >> 1]
                out[j] = table[byte & 15] * scale
                out[j + 1] = table[byte >> 4] * scale
            if (odd + i) % 2:  # the block begins or ends inside a byte
                out[i] = table[codes[(odd + i) >> 1] >> 4] * scale
            if (odd + stop) % 2:
                out[stop - 1] = table[codes[(odd + stop) >> 1] & 15] * scale
        else:
            for j in range(i, stop):
                out[j] = table[codes[j]] * scale
        i = stop
