"""Measures adapters: merged and compared exactly on local files, next to peft's merge followed by a comparison; quick on the local Hub.

``python -m tests.benchmarks.adapters FOLDER`` writes the adapter, in a separate process, because the memory of this one counts as that of
every program that it starts.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.hub.process import HubProcess

from .child import quantity, run
from .model_files import LAYERS, make, tensors
from .result import Result

RANK = 64
TIMES_FASTER, OF_MEMORY = 2.0, 0.25
SECONDS, BYTES, MEMORY = 12, 70e6, 300e6
DELAY = "0.05"  # seconds before each answer of the Hub
RUNS = 3


def adapters_exact(folder: Path) -> Iterator[Result]:
    """Measure ``sparsity BASE ADAPTER --exact`` on 2.2 GB and rank 64: CPU time, memory. Naive: peft's merge in fp32, then the same."""
    base, adapter, merged = make(folder / "base"), folder / "adapter", folder / "merged"
    run(["-m", "tests.benchmarks.adapters", str(adapter)])
    compare = ["-m", "analyzers", "sparsity", str(base)]
    ours = run([*compare, str(adapter), "--exact", "--json"])
    merging = run(["-m", "tests.benchmarks.naive_merge", str(base), str(adapter), str(merged)])
    comparing = run([*compare, str(merged), "--exact", "--json"])
    naive = merging.cpu_seconds + comparing.cpu_seconds
    ratio = naive / ours.cpu_seconds
    cpu, of_peft = quantity(ours.cpu_seconds, "s"), quantity(naive, "s")
    yield Result("adapter merged and compared, 2.2 GB, CPU", cpu, of_peft, ratio, f">= {TIMES_FASTER:.0f}", ratio >= TIMES_FASTER)
    yield Result("  from start to end", quantity(ours.seconds, "s"), quantity(merging.seconds + comparing.seconds, "s"))
    peak, whole = ours.peak_bytes, max(merging.peak_bytes, comparing.peak_bytes)
    met = peak <= OF_MEMORY * whole
    yield Result("  peak memory", _mb(peak), _mb(whole), whole / peak, f">= {1 / OF_MEMORY:.0f}", met)
    changed, expected = ours.json["num_changed"], comparing.json["num_changed"]
    yield Result("  changed", f"{changed:,}", f"{expected:,}", None, "equal", changed == expected)


def adapters_quick(folder: Path) -> Iterator[Result]:
    """Measure ``dtype BASE+ADAPTER`` on 6.7 billion parameters and rank 64."""
    runs, traffic = [], []
    with HubProcess("--adapted", "--delay", DELAY) as hub:
        for number in range(RUNS + 1):  # the first run is discarded
            before = hub.totals()["bytes"]
            done = run(["-m", "analyzers", "dtype", "org/base+org/adapter", "--json"], variables=hub.environ(folder))
            if number:
                runs.append(done)
                traffic.append(hub.totals()["bytes"] - before)
    seconds = sorted(each.seconds for each in runs)[RUNS // 2]
    yield Result("adapter, quick, 7B, 50 ms", quantity(seconds, "s"), "", None, f"< {SECONDS} s", seconds < SECONDS)
    yield Result("  bytes sent", _mb(max(traffic)), "", None, f"<= {_mb(BYTES)}", max(traffic) <= BYTES)
    peak = max(each.peak_bytes for each in runs)
    yield Result("  peak memory", _mb(peak), "", None, f"< {_mb(MEMORY)}", peak < MEMORY)


def _mb(nbytes: float) -> str:
    return f"{nbytes / 1e6:,.0f} MB"


def write(folder: Path) -> None:
    """Write a LoRA of all linear layers of the benchmarks' model, in bf16."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(1)
    matrices = {}
    for name, shape in tensors(LAYERS):
        if len(shape) == 2 and "layers" in name:
            module = f"base_model.model.{name.removesuffix('.weight')}"
            matrices[f"{module}.lora_A.weight"] = torch.randn(RANK, shape[1]).bfloat16()
            matrices[f"{module}.lora_B.weight"] = (torch.randn(shape[0], RANK) * 1e-5).bfloat16()
    folder.mkdir()
    save_file(matrices, folder / "adapter_model.safetensors")
    modules = sorted({name.split(".")[-3] for name in matrices})
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": modules, "task_type": "CAUSAL_LM"}
    (folder / "adapter_config.json").write_text(json.dumps(settings))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
