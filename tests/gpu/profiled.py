"""Shows where answers from files spend their time on a GPU: ``python -m tests.gpu.profiled`` prints the operations that take most.

One table by the time of the processor, all threads together, and one by that of the device. GPU_BENCHMARK_SMALL=1 takes a CPU and small
data.
"""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

from torch.profiler import ProfilerActivity, profile

import mantissa
from benchmarks.inputs import SIZES, fine_tunes

SMALL = "GPU_BENCHMARK_SMALL" in os.environ
_ROWS = 12


def main() -> None:
    """Profile each question the second time it is asked."""
    device = "cpu" if SMALL else "cuda"
    activities = [ProfilerActivity.CPU] if SMALL else [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with TemporaryDirectory(prefix="mantissa-") as folder, fine_tunes(Path(folder), SIZES["small" if SMALL else "cuda"]) as inputs:
        base, tuned = inputs.values["base"], inputs.values["tuned"]
        for name, ask in (
            ("dtype", lambda: mantissa.dtype(base, mode="exact", device=device)),
            ("sparsity", lambda: mantissa.sparsity(base, tuned, mode="exact", device=device)),
        ):
            ask()
            with profile(activities=activities) as profiler:
                ask()
            for order in ("self_cpu_time_total", "self_device_time_total")[: len(activities)]:
                print(f"{name}, by {order}")
                print(profiler.key_averages().table(sort_by=order, row_limit=_ROWS, max_name_column_width=40))


if __name__ == "__main__":
    main()
