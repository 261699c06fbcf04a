"""Loading the compiled loops."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_command_of_ours_does_not_load_linear_algebra() -> None:
    program = (
        "import sys, numpy; from analyzers.numerics import leave_out_linear_algebra, loops_for; leave_out_linear_algebra(); "
        "counts = numpy.zeros((1, 65536), numpy.uint32); loops_for(1 << 30).count16(numpy.full(9, 7, numpy.uint16), counts); "
        "print(counts[0, 7], counts.sum(), 'numba' in sys.modules, 'scipy.linalg' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert run.stdout.split() == ["9", "9", "True", "False"], run.stderr[-500:]


_COMPILED_LATER = """
import sys
from itertools import product
import numpy as np
from analyzers import numerics
from analyzers.numerics import Accumulator, PairCounter, PairTables, changed_mask, kernels
numerics.warm()

def compiled():
    modules = [module for name, module in sys.modules.items() if name.startswith("analyzers.numerics.")]
    loops = ((module.__name__, *item) for module in modules for item in vars(module).items())
    return {(module, name): len(each.signatures) for module, name, each in loops if hasattr(each, "signatures")}

before = compiled()
widths = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8, "F8_E4M3": 1}
codes = {dtype: np.arange(1 << 15, dtype=f"u{width}") for dtype, width in widths.items()}
for dtype in widths:
    Accumulator(dtype, loops=kernels).update(codes[dtype])
for both in product(widths, widths):
    base, tuned = (codes[dtype] for dtype in both)
    PairCounter(*both, 1e-3, PairTables(), loops=kernels).update(base, tuned)
    changed_mask(base, tuned, both, kernels)
    kernels.changed_rows(base, tuned, both, np.zeros(1 << 10, dtype=bool), np.zeros(32, dtype=bool))
print(len(before), sorted(name for (_, name), number in compiled().items() if number != before.get((_, name))))
"""


def test_nothing_is_compiled_for_a_visitor() -> None:
    run = subprocess.run([sys.executable, "-c", _COMPILED_LATER], cwd=ROOT, capture_output=True, text=True, timeout=300)
    count, names = run.stdout.split(maxsplit=1)
    assert int(count) > 30, run.stderr[-500:]
    assert names.strip() == "[]"
