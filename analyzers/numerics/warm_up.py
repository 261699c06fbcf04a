"""Calls every compiled loop once, so that no run waits for the compiler: numba caches the machine code on disk."""

import numpy as np

from analyzers.numerics.accumulator import Accumulator
from analyzers.numerics.bins import CODE_TYPE, BinGroups, bins
from analyzers.numerics.decode_kernels import decode
from analyzers.numerics.few_significands import RUN_COUNTS, runs_of_few_significands
from analyzers.numerics.float_grid_kernels import count_finest, finest_levels
from analyzers.numerics.grid_kernels import ANCHORS, GRID_COUNTS, test_forms, test_tiles
from analyzers.numerics.pair_kernels import bin_of
from analyzers.numerics.pair_statistics import PairTables
from analyzers.numerics.pairs import PairCounter
from analyzers.numerics.piece_kernels import BF16, F16, SUMS, count_casts, count_pieces, multiply_pieces, screen_pieces
from analyzers.numerics.quantize_kernels import rounding_error, sizes, update_lost
from analyzers.numerics.row_kernels import exact_rows16, exact_rows32
from analyzers.numerics.sign_kernels import centred_signs, remove_peaks


def warm_up() -> None:
    """Compile every loop for all argument types that it is called with, or load it from the cache."""
    zeros = {dtype: np.zeros(256, dtype=CODE_TYPE[dtype]) for dtype in ("F32", "F16", "BF16", "F8_E4M3")}
    for dtype, codes in zeros.items():
        accumulator = Accumulator(dtype)
        accumulator.update(codes)
        accumulator.take().count_each(BinGroups.of([bins(dtype).zero]))
        if codes.itemsize > 1:
            ones = np.full_like(codes, 127 << 7)  # a run of few significands: native values take half of the loops
            runs_of_few_significands(ones, 128, 0, 7, 8, 1, np.zeros(RUN_COUNTS, dtype=np.int64))
    zeros["F64"] = np.zeros(256, np.uint64)
    for dtype in ("BF16", "F32", "F64"):
        PairCounter(dtype, dtype, 0.5, PairTables()).update(zeros[dtype], zeros[dtype])
    bin_of(1.0)
    rounding_error(np.zeros((1, 256), np.float32), 1, 16, 2, 1, 0, 6.0, 0.0, False)
    for dtype in ("BF16", "F32"):
        side = np.ones(2, np.int64)
        counts, keys, decades = np.zeros(GRID_COUNTS, np.int64), np.zeros(ANCHORS, np.int64), np.zeros(ANCHORS)
        form = np.array([7, 8, 8, 0, 1, 0, 0, 0, -1000], np.int64)
        test_tiles(zeros[dtype], 16, side, side, side, True, 1, form, 0.0, np.ones((2, 2)), counts, keys, decades, np.zeros((512, 5)))
        test_forms(zeros[dtype], 16, side, np.ones((0, 16), np.int64), np.ones(0), np.ones(0), counts[None], keys[None], decades[None])
        numbers, finest = np.zeros(16, np.int64), (np.zeros((16, 16), np.int16), np.zeros((16, 16), np.int8))
        finest_levels(zeros[dtype].reshape(16, 16), numbers, numbers, np.zeros((1, 5)), 7, 8, 1, *finest)
    count_finest(np.zeros(256, np.int16), np.zeros(256, np.int8), 16, np.zeros((1, 2), np.int64))
    for dtype in ("BF16", "F32"):
        patterns, shift, differ, least = zeros[dtype], np.uint32(16 if dtype == "BF16" else 0), np.zeros(1, np.int64), np.float32(1)
        screen_pieces(patterns, patterns, shift, 256, 16, differ)
        count_pieces(
            patterns, patterns, shift, 256, differ, least, least, np.zeros((3, 1 << 16), np.int64), np.zeros((1, SUMS)), np.zeros((1, 1, 3))
        )
        multiply_pieces(patterns, patterns, shift, 256, differ, np.zeros((1, 1)))
    count_casts(zeros["F32"], zeros["F32"], F16, BF16)
    centred_signs(np.zeros((2, 8)))
    remove_peaks(np.zeros((1, 5), np.complex128), 8.0)
    one, matrix = np.float32(1), np.zeros((1, 256), np.float32)
    update_lost(matrix, matrix, 0, 7, -126, np.inf, (one, one))
    sizes(matrix, matrix)
    exact_rows16(zeros["F16"], 128, 8)
    exact_rows32(zeros["F32"], 128, 8)
    decode(zeros["F8_E4M3"], 0, (1, 32, 1, 32, 1, 1), np.ones(1, np.float32), 0, np.zeros(256, np.float32), np.zeros(32, np.float32))
