"""Compares one GPU with two: ``python -m tests.gpu.two_gpus`` on a machine with two, in about five minutes. Nobody has run that so far.

conflict, precision and exit on a model whose layers accelerate splits between both, and a scan by two processes of ``accelerate launch``,
each on its own GPU. Prints what differs from the results of one GPU, and exits with 1 if anything does. ``--cpu`` takes a CPU for both: the
hooks of accelerate move tensors from it to it, and processes count there.
"""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from accelerate import dispatch_model, infer_auto_device_map

import mantissa
from analyzers.language_models import load
from tests.comparison.differences import differences
from tests.ports import free_port
from tests.scan.scans import launcher

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


def split_models(device: str) -> None:
    """From now on, split each model that is loaded."""
    load.place = split  # type: ignore[attr-defined]
    if device == "cpu":
        alone = load.OpenModel.load

        def hooked(self: load.OpenModel) -> Any:
            places = dict.fromkeys(split(self.outline, torch.float32, 0, ()), "cpu")
            return dispatch_model(alone(self), places, main_device="cpu", force_hooks=True)

        load.OpenModel.load = hooked  # type: ignore[method-assign]


def answers(device: Any) -> dict[str, Any]:
    """Return the reports as JSON, without what the run cost."""
    reports = {
        "conflict": mantissa.conflict(MODEL, dtype="float32", device=device),
        "precision": mantissa.precision(MODEL, variants=("bf16",), sequence_length=32, device=device),
        "exit": mantissa.exit(MODEL, dtype="float32", device=device),
    }
    left_out = {"id", "timing", "environment", "cost"}
    return {name: json.loads(report.model_dump_json(exclude=left_out)) for name, report in reports.items()}


def scanned(folder: Path, device: str, processes: int) -> list[Any]:
    """Scan the samples and return the rows of the table, in order, without what they cost."""
    import pyarrow.parquet

    listed, out = folder / "list.txt", folder / str(processes)
    listed.write_text("\n".join(CHECKPOINTS))
    program = launcher(processes, free_port()) if processes > 1 else [sys.executable, "-m", "analyzers", "scan"]
    options = (
        ["--device", "cuda"] if device == "cuda" else []
    )  # a launched process is asked for its device, and counts on a CPU if it is one
    subprocess.run([*program, str(listed), "--out", str(out), "--exact", *options], check=True, timeout=240)
    rows = pyarrow.parquet.read_table(out / "checkpoints.parquet").to_pylist()
    return sorted((json.loads(json.dumps(row, default=str)) for row in rows), key=lambda row: str(row["ref"]))


def main(device: str) -> int:
    """Print the differences."""
    if device == "cuda" and torch.cuda.device_count() < 2:
        print("This needs two CUDA GPUs.")
        return 2
    one = answers(device)
    split_models(device)
    two = answers(device)
    found = [f"{name}{line}" for name in one for line in differences(one[name], two[name], TOLERANCE[name])]
    with TemporaryDirectory(prefix="mantissa-") as folder:
        alone, launched = (scanned(Path(folder), device, processes) for processes in (1, 2))
    found += [f"scan{line}" for line in differences(alone, launched, 1e-12)]
    print("\n".join(found) or "One device and two give the same answers.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main("cpu" if "--cpu" in sys.argv else "cuda"))
