"""On a CUDA GPU the analyzers give the results of the CPU, and the training monitor those of `sparsity`. Run by `make test-gpu`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

import mantissa
from analyzers.language_models.samples import sample_folder
from mantissa.training import UpdateMonitor
from tests.differences import differences

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU: make test-gpu")

ROOT = Path(__file__).parents[2]
RUNS = (
    "dtype sample:tiny-fp32",
    "dtype sample:tiny-bf16 sample:tiny-fp16-mixed sample:tiny-bf16-as-fp32 --exact",
    "dtype sample:tiny-fp16-as-fp32 --exact",
    "dtype sample:tiny-overflow --exact",
    "sparsity sample:tiny-bf16 sample:tiny-tuned --exact",
    "sparsity sample:tiny-bf16 sample:tiny-tuned --budget 200KB",
    "sparsity sample:tiny-bf16 sample:tiny-step-1 sample:tiny-step-2 sample:tiny-step-3 sample:tiny-step-4 --exact",
    "sparsity sample:tiny-bf16 sample:tiny-tuned --spectral --exact",
    "conflict sample:tiny-bf16 --samples 16 --choice first",
    "conflict sample:tiny-fp32 --samples 8 --choice first --ffn topk --topk-layers all",
    "conflict sample:tiny-tuned --samples 8 --choice first --no-weights --loss sum",
    "precision sample:tiny-bf16 --sequence-length 64",
    "precision sample:tiny-fp32 --variants bf16,fp16 --loss gspo --sequence-length 64 --inside",
    "precision sample:tiny-fp32 --random-init --data random --variants bf16_fp32_residual --sequence-length 32",
    "exit sample:tiny-fp32 --samples 8 --seeds 2",
    "exit sample:tiny-tuned --samples 4 --methods dense,span,svd --no-sweep",
)
# Relative or absolute. Training, in exit, amplifies rounding errors.
TOLERANCE = {"dtype": 1e-12, "sparsity": 1e-12, "conflict": 1e-4, "precision": 1e-4, "exit": 1e-2}


def answer(run: str, device: str) -> Any:
    """The JSON of a run on ``device``, as `comparable`."""
    command = run.split()
    if command[0] in ("conflict", "exit"):
        command += ["--dtype", "float32"]
    program = [sys.executable, "-m", "analyzers", *command, "--device", device, "--json"]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=True)
    return comparable(command[0], json.loads(done.stdout))


def comparable(analyzer: str, found: Any) -> Any:
    """Without the request, which names the device, and costs. Of precision the reference only: in 16 bits devices differ."""
    for each in found if isinstance(found, list) else [found]:
        each.pop("request")
        each.pop("cost", None)
        for method in each.get("methods", {}).values():
            method.pop("memory_ratio", None)
    return found["reference"] if analyzer == "precision" else found


@pytest.mark.parametrize("run", RUNS)
def test_the_gpu_gives_what_the_cpu_gives(run: str) -> None:
    assert list(differences(answer(run, "cpu"), answer(run, "cuda"), TOLERANCE[run.split()[0]])) == []


@pytest.mark.parametrize("variant", ["tf32", "bf16", "fp16", "bf16_autocast"])
def test_a_variant_runs_on_a_gpu(variant: str) -> None:
    report = mantissa.precision("sample:tiny-fp32", variants=(variant,), sequence_length=32, device="cuda")
    assert report.environment.device == "cuda" and list(report.variants) == [variant]


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float32])
def test_models_on_the_gpu_are_counted_there(kind: torch.dtype) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    before = {f"model.layers.{i}.mlp.up_proj.weight": torch.randn(8192, 4096, device="cuda", generator=generator) / 50 for i in range(3)}
    after = {name: (each + torch.randn(each.shape, device="cuda", generator=generator) / 5000).to(kind) for name, each in before.items()}
    before = {name: each.to(kind) for name, each in before.items()}
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    there = mantissa.sparsity(before, after, mode="exact"), mantissa.dtype(after, mode="exact")
    assert torch.cuda.max_memory_allocated() - held <= 256 << 20
    assert [report.environment.device for report in there] == ["cuda", "cuda"]
    here = mantissa.sparsity(before, after, mode="exact", device="cpu"), mantissa.dtype(after, mode="exact", device="cpu")
    left_out = {"id", "timing", "environment", "request", "requests"}
    for reports in zip(there, here, strict=True):
        one, other = (json.loads(report.model_dump_json(exclude=left_out)) for report in reports)
        assert list(differences(one, other, 1e-9)) == []  # the CPU adds the squares of millions of values one after the other


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float32])
def test_files_are_counted_alike(kind: torch.dtype, tmp_path: Path) -> None:
    """The samples have small tensors, which a CPU counts."""
    generator = torch.Generator().manual_seed(0)
    weights = {f"model.layers.{i}.mlp.up_proj.weight": torch.randn(1024, 4096, generator=generator) / 50 for i in range(3)}
    sides = tmp_path / "base", tmp_path / "tuned"
    for side, size in zip(sides, (0.0, 2e-4), strict=True):
        side.mkdir()
        moved = {name: (each + size * torch.randn(each.shape, generator=generator)).to(kind) for name, each in weights.items()}
        save_file(moved, side / "model.safetensors")
    left_out = {"id", "timing", "environment", "request"}
    for ask in (
        lambda device: mantissa.sparsity(*sides, mode="exact", device=device),
        lambda device: mantissa.dtype(sides[1], mode="exact", device=device),
    ):
        one, other = (json.loads(ask(device).model_dump_json(exclude=left_out)) for device in ("cuda", "cpu"))
        assert list(differences(one, other, 1e-9)) == []


def test_parents_of_models_on_the_gpu_are_those_of_their_copies() -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    names = [f"model.layers.{i}.mlp.up_proj.weight" for i in range(3)]
    base, other, noise = (
        {name: torch.randn(2048, 4096, device="cuda", generator=generator).bfloat16() for name in names} for _ in range(3)
    )
    sides = {name: base[name] + noise[name] / 100 for name in names}, base, other
    left_out = {"id", "timing", "environment", "request", "requests"}
    there, here = (
        json.loads(mantissa.parents(*models, mode="exact").model_dump_json(exclude=left_out))
        for models in (sides, [{name: each.cpu() for name, each in side.items()} for side in sides])
    )
    assert list(differences(there, here, 1e-12)) == []


def test_a_monitor_counts_on_the_gpu_what_sparsity_counts(tmp_path: Path) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(sample_folder("tiny-bf16"), dtype=torch.bfloat16, device_map="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    token_ids = torch.randint(3, 500, (4, 32), device="cuda")
    model.save_pretrained(tmp_path / "before")
    with UpdateMonitor(model, optimizer, share=1) as monitor:
        for _ in range(3):
            logits = model(token_ids).logits
            torch.autograd.backward(cross_entropy(logits[:, :-1].flatten(0, 1).float(), token_ids[:, 1:].flatten()))
            optimizer.step()
            optimizer.zero_grad()
        look = monitor.look()
    model.save_pretrained(tmp_path / "after")
    report = mantissa.sparsity(tmp_path / "before", tmp_path / "after", mode="exact")
    assert 0 < look.total.changed == report.num_changed
    assert look.total.followed == look.total.values and look.total.lost_share is not None
