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
