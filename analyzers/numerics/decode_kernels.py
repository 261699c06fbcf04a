"""Computes values from packed codes, scales and zero points in compiled loops."""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(nogil=True, cache=True, error_model="numpy")
def unpack(packed: NDArray[np.uint8], skipped: int, bits: int, order: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
    """Set ``out`` (n,) to the codes of ``bits`` bits, at most 8, that follow the first ``skipped`` codes of ``packed``.

    Codes are consecutive, each from the lowest bit on. order: the position of each of so many codes among them, from the first of ``out``
    on; empty if they are in order.
    """
    mask = (1 << bits) - 1
    if bits == 4:
        # Whole bytes, then the codes of the first and the last byte if only half of it is wanted; slices let the loops be vectorized.
        odd = skipped & 1
        whole, halves = packed[(skipped + odd) >> 1 :], out[odd:]
        for i in range(halves.size // 2):
            halves[2 * i] = whole[i] & 15
            halves[2 * i + 1] = whole[i] >> 4
        if odd and out.size:
            out[0] = packed[skipped >> 1] >> 4
        if halves.size & 1:
            halves[-1] = whole[halves.size // 2] & 15
    else:
        for i in range(out.size):
            at = (skipped + i) * bits
            code = np.int64(packed[at >> 3]) >> (at & 7)
            if (at & 7) + bits > 8:
                code |= np.int64(packed[(at >> 3) + 1]) << (8 - (at & 7))
            out[i] = code & mask
    if order.size:
        size, group = order.size, np.empty(order.size, np.uint8)
        for start in range(0, out.size, size):
            codes = out[start : start + size]
            for i in range(codes.size):
                group[i] = codes[i]
            for i in range(codes.size):
                codes[i] = group[order[i]]


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
        shift, codes, at = np.uint32(low), out[i:stop], word * columns + column - base
        here = words[at : at + codes.size]
        if low + bits <= 32:
            for j in range(codes.size):
                codes[j] = (here[j] >> shift) & mask
        else:
            rest, following = np.uint32(32 - low), words[at + columns : at + columns + codes.size]
            for j in range(codes.size):
                codes[j] = ((here[j] >> shift) | (following[j] << rest)) & mask
        i = stop


@njit(nogil=True, cache=True, error_model="numpy")
def scale_codes(
    codes: NDArray[np.uint8], start: int, grid: Any, groups: NDArray[np.int64], places: NDArray[np.int64],
    table: NDArray[np.float32], parts: NDArray[np.float32], base: int, out: NDArray[np.float32],
) -> None:  # fmt: skip
    """Set ``out`` (n,) to the values of elements ``start`` to ``start + n`` of a tensor: (table[code] - zero) x scale + bias.

    The tensor is (matrices, rows, columns), row-major, and each of its matrices is cut into blocks that share a scale. grid: (rows,
    columns, rows of a block, columns of a block, rows of scales, columns of scales). groups: the row of scales of each row of the one
    matrix, from the row of ``start`` on; places: the column of scales of each column; empty if these follow from the blocks. parts: (3, m)
    scales, zeros and biases, from number ``base`` on of arrays (matrices, rows of scales, columns of scales), row-major.
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
        if places.size:
            for j in range(i, stop):
                k = at + places[column + j - i]
                out[j] = (table[codes[j]] - zeros[k]) * scales[k] + biases[k]
        elif block_columns == 1:
            part, values, first = codes[i:stop], out[i:stop], at + column
            scale, zero, bias = scales[first : first + part.size], zeros[first : first + part.size], biases[first : first + part.size]
            for j in range(part.size):
                values[j] = (table[part[j]] - zero[j]) * scale[j] + bias[j]
        else:
            while i < stop:
                block = column // block_columns
                k = at + block
                end = min(i + (block + 1) * block_columns - column, stop)
                one_scale, one_zero, one_bias = scales[k], zeros[k], biases[k]
                part, values = codes[i:end], out[i:end]
                for j in range(part.size):
                    values[j] = (table[part[j]] - one_zero) * one_scale + one_bias
                column += end - i
                i = end
        i = stop
