"""Loading the compiled loops."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# numba and its types: what loops are compiled with, and what nobody should have to wait for.
_WITHOUT_COMPILER = """
import sys
sys.modules["numba"] = None
from itertools import product
import numpy as np
from analyzers import numerics
from analyzers.numerics import Accumulator, PairCounter, PairTables, intersections, kernels, room_for_changed
from analyzers.numerics import gradients, grams

widths = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8, "F8_E4M3": 1}
codes = {dtype: np.arange(1 << 15, dtype=f"u{width}") for dtype, width in widths.items()}
for dtype in widths:
    Accumulator(dtype, loops=kernels).update(codes[dtype])
for both in product(widths, widths):
    base, tuned = (codes[dtype] for dtype in both)
    changed = room_for_changed(base.size)
    PairCounter(*both, 1e-3, PairTables(), loops=kernels).update(base, tuned, changed)
    kernels.mark_places(changed, 0, 0, 1 << 10, np.zeros(16, dtype=np.uint64), np.zeros(32, dtype=bool))
    kernels.intersections(np.stack([changed, changed]))
for dtype in ("BF16", "F16", "F32"):
    kernels.runs_of_few_significands(codes[dtype], 128, 0, 7, 8, 1, np.zeros(12, dtype=np.int64))
one = np.ones((2, 3, 3), np.float32)
panels = gradients.Panels([1, 1], 3)
panels.fill(one[0, :2], 0.5, slice(0, 2))
for weights in (None, gradients.WeightCounts()):
    gradients.unit_grams(one[0, :2], panels, 2.0, weights)
grams.sum_shares(one, 0.0)
grams.sum_over_units(one, 0.0, 0.0, np.ones(5, np.float32))
grams.add_batches(one, np.zeros((1, 1, 2), np.int64), 0.0, 0.0, np.zeros(3))
numerics.warm()
print("done", "scipy.linalg" in sys.modules)
"""


def test_nothing_is_compiled_for_a_visitor() -> None:
    """What `warm` compiles is all that is ever called: with it done, every way of counting goes without numba."""
    for program in ("import analyzers.numerics as numerics; numerics.warm(); print('done False')", _WITHOUT_COMPILER):
        run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300)
        assert run.stdout.split() == ["done", "False"], run.stderr[-1000:]
