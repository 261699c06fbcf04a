"""What is compiled at set-up is all that is ever called: nobody waits for the compiler."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_EVERY_WAY_OF_COUNTING = """
from itertools import product
import numpy as np
from numba.core.dispatcher import Dispatcher
from analyzers.checkpoints.quantization import decode
from analyzers.dtype_detection import count
from analyzers.numerics import Accumulator, PairCounter, PairTables, count_kernels, pair_kernels, few_significands
from analyzers.numerics import grid_kernels, grid_scales
from analyzers.numerics.bins import CODE_TYPE
from analyzers.numerics.warm_up import warm_up

loops = {
    f"{module.__name__}.{name}": loop
    for module in (count, count_kernels, decode, pair_kernels, few_significands, grid_kernels, grid_scales)
    for name, loop in vars(module).items()
    if isinstance(loop, Dispatcher) and not name.startswith("_")
}
assert len(loops) >= 6, sorted(loops)
warm_up()
compiled = {name: set(loop.signatures) for name, loop in loops.items()}
codes = {dtype: np.arange(1 << 16, dtype=np.uint32).astype(kind) for dtype, kind in CODE_TYPE.items()}
for dtype in CODE_TYPE:
    Accumulator(dtype).update(codes[dtype])
SIDES = ("F32", "F16", "BF16", "F8_E4M3")  # fp64 is counted by numpy
for one, other in product(SIDES, SIDES):
    for tables, changed in product((None, PairTables()), (None, np.empty(1 << 16, dtype=bool))):
        counter = PairCounter(one, other, 1e-3, tables)
        counter.update(codes[one], codes[other], changed)
        counter.take()
for dtype, held in count._FORMATS.items():
    bits = held.mantissa_bits, held.exponent_bits
    few_significands.runs_of_few_significands(codes[dtype][128:], 128, 1, *bits, 3, np.zeros(few_significands.RUN_COUNTS, dtype=np.int64))
count.exact_rows16(codes["F16"], 128, 10)
count.exact_rows32(codes["F32"], 128, 8)
grid = decode.Grid(512, 256, 128, 128, 4, 2)
for dtype in ("F8_E4M3", "F4"):
    decode.decode(codes["F8_E4M3"][5:], 5, tuple(grid), np.ones(8, np.float32), 0, decode._table(dtype), np.zeros(1000, np.float32))
from analyzers.checkpoints import Tensor
from analyzers.grids import GridSearch
grid = (np.random.default_rng(0).integers(-7, 8, (64, 512)) / 70).astype(np.float32).view(np.uint32)
for dtype, patterns in {"F32": grid, "BF16": grid, "F16": grid.view(np.float32).astype(np.float16)}.items():
    patterns = (patterns >> 16).astype(np.uint16) if dtype == "BF16" else patterns.view(CODE_TYPE[dtype])
    search = GridSearch(Tensor("a.mlp.up_proj.weight", dtype, (64, 512), 0, 0, 0, "mlp", 0, False))
    search.add(patterns.reshape(-1), 0)
    assert search.found
for name, loop in loops.items():
    print(name, *set(loop.signatures) - compiled[name])
"""


def test_every_way_of_counting_is_compiled_at_set_up() -> None:
    run = subprocess.run([sys.executable, "-c", _EVERY_WAY_OF_COUNTING], cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stderr[-2000:]
    lines = [line.split() for line in run.stdout.splitlines()]
    assert len(lines) >= 7 and all(len(line) == 1 for line in lines), run.stdout
