"""Writes adapters in peft's layout, without peft and without the code under test."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.dtype.checkpoints import normal, write
from tests.sparsity.checkpoints import BF16, Tensors, model

Factors = dict[str, tuple[torch.Tensor, torch.Tensor]]
ALPHA = 8.0


def base(folder: Path, dtype: torch.dtype = BF16, layers: int = 2, width: int = 64, **config: Any) -> tuple[Path, Tensors]:
    """Write a small decoder; a config that ties the head removes it."""
    tensors = model(dtype, layers, width)
    if config.get("tie_word_embeddings"):
        del tensors["lm_head.weight"]
    return write(folder / "base", tensors, {"model_type": "llama", **config}), tensors


def factors(tensors: Mapping[str, torch.Tensor], size: float, *parts: str, rank: int = 4, seed: int = 1) -> Factors:
    """Draw A and B for the modules with one of ``parts`` in their name: their products, times the scale, have entries of about ``size``."""
    names = [name for name in tensors if any(part in name for part in parts)]
    drawn = {}
    for number, name in enumerate(names):
        rows, columns = tensors[name].shape
        a = normal(rank, columns, seed=1000 * seed + 2 * number, scale=1)
        drawn[name] = a, normal(rows, rank, seed=1000 * seed + 2 * number + 1, scale=size * rank**0.5 / ALPHA)
    return drawn


def write_adapter(folder: Path, drawn: Factors, saved: Mapping[str, torch.Tensor] | None = None, **config: Any) -> Path:
    """Write the factors, and whole tensors that replace the base's, with a configuration of their rank."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"base_model.model.{name}": tensor for name, tensor in (saved or {}).items()}
    for name, (a, b) in drawn.items():
        module = f"base_model.model.{name.removesuffix('.weight')}"
        tensors |= {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "adapter_model.safetensors")
    rank = next((len(a) for a, _ in drawn.values()), 4)
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": ALPHA, "base_model_name_or_path": "org/base", **config}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


def merged(tensors: Mapping[str, torch.Tensor], drawn: Factors) -> Tensors:
    """Add s B A, rounded to fp32."""
    whole = {name: tensor.float() for name, tensor in tensors.items()}
    for name, (a, b) in drawn.items():
        whole[name] = (whole[name].double() + (b.double() @ a.double()) * (ALPHA / len(a))).float()
    return whole


CASTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"bf16": lambda x: x.bfloat16().float(), "fp16": lambda x: x.half().float()}


def lost(base: Mapping[str, torch.Tensor], merged: Mapping[str, torch.Tensor], name: str, names: Iterable[str]) -> tuple[float, ...]:
    """Count with torch what rounding loses of updates: those touched, changed, overflowed, and squares of errors and of updates."""
    found = torch.zeros(5, dtype=torch.float64)
    for each in names:
        before, after = base[each].float(), merged[each]
        old, new, update = CASTS[name](before), CASTS[name](after), after.double() - before.double()
        touched = (update != 0) & update.isfinite()
        finite = touched & old.isfinite() & new.isfinite()
        error = (new.double() - old.double() - update)[finite]
        counts = touched.sum(), ((old != new) & touched).sum(), (~new.isfinite() & touched).sum()
        found += torch.stack([*(count.double() for count in counts), (error**2).sum(), (update[finite] ** 2).sum()])
    return tuple(found.tolist())
