"""Compares one GPU with two: ``python -m tests.gpu.two_gpus`` on a machine with two, in about five minutes. Never run so far.

conflict, precision and exit on a model whose layers accelerate splits between both, and a scan by two processes of ``accelerate launch``,
each on its own GPU. Prints what differs from the results of one GPU, and exits with 1 if anything does.
"""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from accelerate import infer_auto_device_map

import mantissa
from analyzers.language_models import load
from tests.comparison.differences import differences

MODEL = "sample:tiny-fp32"
TOLERANCE = {"conflict": 1e-4, "precision": 1e-4, "exit": 1e-2}
CHECKPOINTS = ("sample:tiny-fp32", "sample:tiny-bf16", "sample:tiny-tuned", "sample:tiny-sharded")


def split(model: Any, dtype: torch.dtype, needs: int, free: Any) -> dict[str, int]:
    """Map about half of the model to each GPU, in place of `memory_needs.place`."""
    half = sum(parameter.numel() for parameter in model.parameters()) * dtype.itemsize * 6 // 10
    whole = list(model._no_split_modules or ())
    places = infer_auto_device_map(model, max_memory={0: half, 1: 4 * half}, no_split_module_classes=whole, dtype=dtype)
    assert set(places.values()) == {0, 1}, places
    return dict(places)


def answers() -> dict[str, Any]:
    """Return the reports as JSON, without what the run cost."""
    reports = {
        "conflict": mantissa.conflict(MODEL, dtype="float32", device="cuda"),
        "precision": mantissa.precision(MODEL, variants=("bf16",), sequence_length=32, device="cuda"),
        "exit": mantissa.exit(MODEL, dtype="float32", device="cuda"),
    }
    return {name: json.loads(report.model_dump_json(exclude={"cost"})) for name, report in reports.items()}


def scanned(folder: Path, device: str, *launcher: str) -> list[Any]:
    """Scan the samples and return the rows of the table, in order, without what they cost."""
    import pyarrow.parquet

    listed, out = folder / "list.txt", folder / ("launched" if launcher else "alone")
    listed.write_text("\n".join(CHECKPOINTS))
    command = [sys.executable, "-m", *launcher, "mantissa", "scan", str(listed), "--out", str(out), "--exact", "--device", device]
    subprocess.run(command, check=True, timeout=240)
    rows = pyarrow.parquet.read_table(out / "checkpoints.parquet").to_pylist()
    return sorted((json.loads(json.dumps(row, default=str)) for row in rows), key=lambda row: str(row["ref"]))


def main() -> int:
    """Print the differences."""
    if torch.cuda.device_count() < 2:
        print("This needs two CUDA GPUs.")
        return 2
    one = answers()
    load.place = split  # type: ignore[attr-defined]
    two = answers()
    found = [f"{name}{line}" for name in one for line in differences(one[name], two[name], TOLERANCE[name])]
    with TemporaryDirectory(prefix="mantissa-") as folder:
        alone = scanned(Path(folder), "cuda")
        launched = scanned(Path(folder), "cuda", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "-m")
    found += [f"scan{line}" for line in differences(alone, launched, 1e-12)]
    print("\n".join(found) or "One GPU and two give the same answers.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
