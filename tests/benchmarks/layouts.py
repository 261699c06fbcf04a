"""Measures exact mode on one fine-tune in other layouts, each next to the plain layout.

``python -m tests.benchmarks.layouts FOLDER LAYOUT OUT`` converts a checkpoint, in a separate process so that its memory is not counted;
with the layout "matched", it prints the seconds of processor time that matching two checkpoints takes.
"""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING

from .child import repeat, run
from .model_files import make
from .result import Result

if TYPE_CHECKING:
    import torch

LAYOUTS = ("fused", "interleaved by heads", "transposed", "stacked")
RUNS = 3
TARGET = 1.5
MATCHING = 0.05
_EXPERTS = 4
_HEAD = 128


def layouts(folder: Path) -> Iterator[Result]:
    """Measure time and memory of whole commands on 2 x 2.2 GB, relative to the plain layout in the same run."""
    base, plain = make(folder / "base"), make(folder / "tuned", update="scattered-0.3")
    for layout in LAYOUTS:
        out = folder / "relaid"
        if layout == "stacked":
            base, plain = (_converted(each, "experts one by one", folder / f"{each.name}-experts") for each in (base, plain))
        _converted(plain, layout, out)
        ours, same = (repeat(RUNS, ["-m", "analyzers", "sparsity", str(base), str(each), "--exact", "--json"]) for each in (out, plain))
        cpu = [min(each.cpu_seconds for each in runs.each) for runs in (ours, same)]
        cost = ours.seconds / same.seconds
        told = {(each.json["num_changed"], each.json["total_parameters"]) for runs in (ours, same) for each in runs.each}
        yield Result(f"sparsity, {layout} next to plain", str(ours), str(same), 1 / cost, f">= {1 / TARGET:.2f}", cost <= TARGET)
        yield Result("  CPU", f"{cpu[0]:.2f} s", f"{cpu[1]:.2f} s", cpu[1] / cpu[0])
        yield Result("  the same counts", "yes" if len(told) == 1 else "no", "", None, "yes", len(told) == 1)
        yield Result("  peak memory", f"{ours.peak_bytes / 1e6:,.0f} MB", f"{same.peak_bytes / 1e6:,.0f} MB")
        if layout == LAYOUTS[0]:
            matching = float(run(["-m", "tests.benchmarks.layouts", str(base), "matched", str(plain)]).output)
            limit = MATCHING * cpu[1]
            yield Result(
                "  CPU of matching by values, plain", f"{matching:.3f} s", f"{cpu[1]:.2f} s", None, f"<= {limit:.2f} s", matching <= limit
            )
        shutil.rmtree(out)


def match(base: Path, tuned: Path) -> float:
    """Return the seconds of processor time that it takes to match two checkpoints, values included."""
    from analyzers.checkpoints import Access, open_whole
    from analyzers.checkpoints.matching.align import align
    from analyzers.checkpoints.matching.probe import Reader

    sides = [open_whole(str(each), Access(local=True)) for each in (base, tuned)]
    align(sides[0], sides[1:], readers=[Reader(side) for side in sides])  # compiles
    start = process_time()
    align(sides[0], sides[1:], readers=[Reader(side) for side in sides])
    return process_time() - start


def _converted(folder: Path, layout: str, out: Path) -> Path:
    run(["-m", "tests.benchmarks.layouts", str(folder), layout, str(out)])
    return out


def _experts(state: "dict[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
    """Cut every MLP into experts."""
    result: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        before, mlp, projection = name.partition(".mlp.")
        if mlp:
            parts = tensor.chunk(_EXPERTS, dim=int("down_proj" in projection))
            result |= {f"{before}.mlp.experts.{number}.{projection}": part for number, part in enumerate(parts)}
        else:
            result[name] = tensor
    return result


def _stacked(state: "dict[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
    """Stack the experts, gate and up fused."""
    import torch

    result = {name: tensor for name, tensor in state.items() if ".experts." not in name}
    for name in state:
        before, first, projection = name.partition(".experts.0.")
        if first and "up_proj" not in projection:
            names = ("gate_proj", "up_proj") if "gate_proj" in projection else ("down_proj",)
            parts = [torch.cat([state[f"{before}.experts.{i}.{each}.weight"] for each in names]) for i in range(_EXPERTS)]
            result[f"{before}.experts.{'gate_up_proj' if len(names) == 2 else 'down_proj'}"] = torch.stack(parts)
    return result


def relay(folder: Path, layout: str, out: Path) -> None:
    """Write the checkpoint in ``folder`` to ``out`` in another layout."""
    import torch
    from safetensors.torch import load_file, save_file

    state = {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}
    result: dict[str, torch.Tensor] = {}
    if layout in ("experts one by one", "stacked"):
        result, state = (_experts if layout != "stacked" else _stacked)(state), {}
    for name, tensor in state.items():
        q, k, v = (state.get(name.replace("q_proj", part)) for part in ("q_proj", "k_proj", "v_proj"))
        if layout == "transposed":
            result[name] = tensor.T if tensor.dim() == 2 and ".layers." in name else tensor
        elif "q_proj" in name and q is not None and k is not None and v is not None:
            groups = len(k) // _HEAD if layout == "interleaved by heads" else 1
            parts = torch.cat([each.view(groups, -1, each.shape[1]) for each in (q, k, v)], 1)
            result[name.replace("q_proj", "qkv_proj")] = parts.flatten(0, 1)
        elif not any(part in name for part in ("k_proj", "v_proj")):
            result[name] = tensor
    out.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in result.items()}, out / "model.safetensors", {"format": "pt"})
    shutil.copy(folder / "config.json", out)


if __name__ == "__main__":
    first, second = Path(sys.argv[1]), Path(sys.argv[3])
    if sys.argv[2] == "matched":
        print(match(first, second))
    else:
        relay(first, sys.argv[2], second)
