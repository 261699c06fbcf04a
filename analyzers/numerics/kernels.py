"""The loops over bits, compiled: `compiled` has them, and documents each. They release the GIL, so that threads run them side by side."""

from typing import TYPE_CHECKING, Any

import numpy as np

from analyzers.numerics.machine_code import Loop
from analyzers.numerics.runs import RUN_COUNTS

if TYPE_CHECKING:
    from analyzers.numerics.compiled_pairs import count_pairs as count_pairs
    from analyzers.numerics.compiled_pairs import intersections as intersections
    from analyzers.numerics.compiled_pairs import mark_places as mark_places

count_bf16: Any = Loop("count_kernels", "count_bf16")
count_fp16: Any = Loop("count_kernels", "count_fp16")
count32: Any = Loop("count_kernels", "count32")
take_counts: Any = Loop("count_kernels", "take_counts")
squares: Any = Loop("count_kernels", "squares")
exact_rows16: Any = Loop("count_kernels", "exact_rows16")
exact_rows32: Any = Loop("count_kernels", "exact_rows32")
decode_fp8: Any = Loop("decode_kernels", "decode_fp8")
decode_fp4: Any = Loop("decode_kernels", "decode_fp4")
runs_of_few_significands: Any = Loop("run_kernels", "runs_of_few_significands")


def __getattr__(name: str) -> Any:
    """The loops over pairs: imported when one is asked for, for one checkpoint alone needs none of them."""
    if name not in ("count_pairs", "intersections", "mark_places"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from analyzers.numerics import compiled_pairs

    return getattr(compiled_pairs, name)


def start() -> None:
    """Have the loader ready: the first loop takes a tenth of a second, every further one a few milliseconds where it is first called."""
    count_bf16(np.zeros(4, dtype=np.uint16), np.zeros((1, 1 << 16), dtype=np.uint32), np.zeros((3, 256), dtype=np.int64))


def warm() -> None:
    """Load every loop over one checkpoint, compiled if that was never done: so that the first visitor does not wait for it."""
    table = np.zeros((1, 1 << 16), dtype=np.uint32)
    planes = np.zeros((5, 1 << 16), dtype=np.uint32)
    runs = np.zeros(RUN_COUNTS, dtype=np.int64)
    for code_type in (np.uint16, np.uint32):
        codes = np.arange(256, dtype=code_type)
        mantissa, exponent = (7, 8) if code_type is np.uint16 else (23, 8)
        runs_of_few_significands(codes, 128, 0, mantissa, exponent, 1, runs)
    beside = np.zeros((3, 256), dtype=np.int64)
    for count in (count_bf16, count_fp16):
        count(np.arange(256, dtype=np.uint16), table, beside)
    take_counts(table, beside, (7, 110, 254, 15, 1), *np.zeros((2, 1 << 16), dtype=np.int64))
    exact_rows16(np.arange(256, dtype=np.uint16), 128, 8)
    codes32 = np.arange(256, dtype=np.uint32)
    count32(codes32, planes, np.zeros(1 << 19, dtype=np.uint32), beside)
    exact_rows32(codes32, 128, 8, False)
    squares(codes32.view(np.float32), 1.0)
    squares(np.zeros(4), 1.0)
    bytes8, values, ones = np.zeros(32, dtype=np.uint8), np.zeros(32, dtype=np.float32), np.ones(1, dtype=np.float32)
    decode_fp8(bytes8, 0, (1, 32, 1, 32, 1, 1), ones, 0, np.zeros(256, dtype=np.float32), values)
    decode_fp4(bytes8, 0, (1, 32, 1, 32, 1, 1), ones, 0, np.zeros(16, dtype=np.float32), values)
