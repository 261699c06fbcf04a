"""Computes values from packed codes, scales and zero points in compiled loops."""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(nogil=True, cache=True, error_model="numpy")
def unpack(packed: NDArray[np.uint8], skipped: int, bits: int, order: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
    """Set ``out`` (n,) to the codes of ``bits`` bits, at most 8, that follow the first ``skipped`` codes of ``packed``.

    Codes are consecutive, each from the lowest bit on. order: the position of each of so many codes among them; empty if they are in order.
    """
    mask = (1 << bits) - 1
    if order.size:
        size = order.size
        for i in range(out.size):
            number, within = divmod(skipped + i, size)
            at = (number * size + order[within]) * bits
            out[i] = (packed[at >> 3] >> (at & 7)) & mask
    elif bits == 4:
        odd = skipped & 1
        for i in range(odd, out.size - 1, 2):
            byte = packed[(skipped + i) >> 1]
            out[i] = byte & 15
            out[i + 1] = byte >> 4
        if odd and out.size:
            out[0] = packed[skipped >> 1] >> 4
        if (skipped + out.size) & 1:
            out[-1] = packed[(skipped + out.size - 1) >> 1] & 15
    else:
        for i in range(out.size):
            at = (skipped + i) * bits
            code = np.int64(packed[at >> 3]) >> (at & 7)
            if (at & 7) + bits > 8:
                code |= np.int64(packed[(at >> 3) + 1]) << (8 - (at & 7))
            out[i] = code & mask


@njit(nogil=True, cache=True, error_model="numpy")
def unpack_down(words: NDArray[np.uint32], base: int, columns: int, start: int, bits: int, out: NDArray[np.uint8]) -> None:
    """Set ``out`` (n,) to elements ``start`` to ``start + n`` of a matrix whose columns are packed, each from the lowest bit of a word on.

    words: those from number ``base`` on of a row-major matrix of ``columns`` columns. A code may begin in one word and end in the next.
    """
    mask = np.uint32((1 << bits) - 1)
    i = 0
    while i < out.size:
        row, column = divmod(start + i, columns)
        stop = min(i + columns - column, out.size)
        word, low = divmod(row * bits, 32)
        at, shift = word * columns + column - base - i, np.uint32(low)
        if low + bits <= 32:
            for j in range(i, stop):
                out[j] = (words[at + j] >> shift) & mask
        else:
            rest = np.uint32(32 - low)
            for j in range(i, stop):
                out[j] = ((words[at + j] >> shift) | (words[at + columns + j] << rest)) & mask
        i = stop


@njit(nogil=True, cache=True, error_model="numpy")
def scale_codes(
    codes: NDArray[np.uint8], start: int, grid: Any, groups: NDArray[np.int64], table: NDArray[np.float32],
    parts: NDArray[np.float32], base: int, out: NDArray[np.float32],
) -> None:  # fmt: skip
    """Set ``out`` (n,) to the values of elements ``start`` to ``start + n`` of a tensor: (table[code] - zero) x scale + bias.

    The tensor is (matrices, rows, columns), row-major, and each of its matrices is cut into blocks that share a scale. grid: (rows,
    columns, rows of a block, columns of a block, rows of scales, columns of scales). groups: the row of scales of each row of the one
    matrix, from the row of ``start`` on; empty if they follow from the blocks. parts: (3, m) scales, zeros and biases, from number ``base``
    on of arrays (matrices, rows of scales, columns of scales), row-major.
    """
    rows, columns, block_rows, block_columns, scale_rows, scale_columns = grid
    scales, zeros, biases = parts[0], parts[1], parts[2]
    i = 0
    while i < out.size:
        row, column = divmod(start + i, columns)
        matrix, within = divmod(row, rows)
        group = groups[row - start // columns] if groups.size else within // block_rows
        at = (matrix * scale_rows + group) * scale_columns - base
        stop = min(i + columns - column, out.size)
        if block_columns == 1:
            for j in range(i, stop):
                k = at + column + j - i
                out[j] = (table[codes[j]] - zeros[k]) * scales[k] + biases[k]
        else:
            while i < stop:
                block = column // block_columns
                k = at + block
                end = min(i + (block + 1) * block_columns - column, stop)
                scale, zero, bias = scales[k], zeros[k], biases[k]
                for j in range(i, end):
                    out[j] = (table[codes[j]] - zero) * scale + bias
                column += end - i
                i = end
        i = stop
