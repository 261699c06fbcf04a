"""Calls every compiled loop once, so that no run waits for the compiler: numba caches the machine code on disk."""

import numpy as np

from analyzers.numerics.accumulator import Accumulator
from analyzers.numerics.bins import CODE_TYPE, BinGroups, bins
from analyzers.numerics.copy_kernels import COLUMN_SUMS, FITTED, SUMS, add_columns, count_copy, fit_rows
from analyzers.numerics.decode_kernels import scale_codes, unpack, unpack_down
from analyzers.numerics.grid_kernels import Counts, Levels, fit_tiles
from analyzers.numerics.pairs import PairCounter, PairSums, codes_of
from analyzers.numerics.quantize_kernels import rounding_error
from analyzers.numerics.row_kernels import exact_rows16, exact_rows32
from analyzers.numerics.sketches import PairTables


def warm_up() -> None:
    """Compile every loop for all argument types that it is called with, or load it from the cache."""
    zeros = {dtype: np.zeros(256, dtype=CODE_TYPE[dtype]) for dtype in ("F32", "F16", "BF16", "F8_E4M3")}
    for dtype, codes in zeros.items():
        accumulator = Accumulator(dtype)
        accumulator.update(codes)
        accumulator.take().count_each(BinGroups.of([bins(dtype).zero]))
    for dtype in ("BF16", "F32"):
        before, after = (codes_of(codes, dtype, narrow=True) for codes in (zeros[dtype], np.full_like(zeros[dtype], 1)))
        before.constant()
        PairCounter(0.5).count(before, after, PairSums(), np.zeros((1, 3)), np.zeros(1, np.bool_), PairTables.empty(1))
    rounding_error(np.zeros((1, 256), np.float32), 1, 16, 2, 1, 0, 6.0, 0.0, False)
    levels = Levels(np.ones((2, 1)), 0, 0.0, integers=True)
    for dtype in ("BF16", "F32"):
        fit_tiles(zeros[dtype].reshape(16, 16), (0, 0), (1, 16), 1, (7, 8), levels, Counts.zeros(), np.zeros((16, 2)))
    values = np.zeros(256, np.float32)
    count_copy(values, values, values, values, values, np.arange(2.0), True, 0.0, np.zeros(SUMS))
    add_columns(values, values, values, 0, np.zeros((COLUMN_SUMS, 1)))
    matrix = values.reshape(1, -1)
    fit_rows(matrix, matrix, matrix, np.ones(256), np.zeros(1, np.float32), np.zeros(FITTED))
    exact_rows16(zeros["F16"], 128, 8)
    exact_rows32(zeros["F32"], 128, 8)
    codes8, none = zeros["F8_E4M3"][:32], np.empty(0, np.int64)
    unpack(codes8, 0, 4, none, codes8.copy())
    unpack_down(zeros["F32"], 0, 32, 0, 4, codes8.copy())
    scale_codes(codes8, 0, (1, 32, 1, 32, 1, 1), none, none, values, np.ones((3, 1), np.float32), 0, values[:32].copy())
