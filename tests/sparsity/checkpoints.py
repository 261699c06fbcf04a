"""Writes pairs of checkpoints of known difference, without the code under test."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.dtype.checkpoints import normal, write

BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
Tensors = dict[str, torch.Tensor]


def model(dtype: torch.dtype = BF16, layers: int = 2, width: int = 48) -> Tensors:
    """Make a small decoder with realistic names and shapes."""
    tensors = {"model.embed_tokens.weight": normal(96, width, seed=1)}
    for layer in range(layers):
        start = f"model.layers.{layer}."
        tensors |= {
            f"{start}self_attn.q_proj.weight": normal(width, width, seed=10 * layer + 2),
            f"{start}self_attn.o_proj.weight": normal(width, width, seed=10 * layer + 5),
            f"{start}mlp.up_proj.weight": normal(2 * width, width, seed=10 * layer + 3),
            f"{start}input_layernorm.weight": normal(width, seed=10 * layer + 4) + 1,
        }
    tensors["lm_head.weight"] = normal(96, width, seed=7)
    return {name: tensor.to(dtype) for name, tensor in tensors.items()}


def updated(tensors: Mapping[str, torch.Tensor], scale: float = 2e-5, share: float = 0.4, seed: int = 0) -> Tensors:
    """Move each value by about ``scale`` with probability ``share``, in its dtype."""
    rng = np.random.default_rng(seed)
    moved = {}
    for name, tensor in tensors.items():
        step = rng.standard_normal(tuple(tensor.shape)) * scale * (rng.random(tuple(tensor.shape)) < share)
        moved[name] = (tensor.to(F64) + torch.from_numpy(np.asarray(step))).to(tensor.dtype)
    return moved


def pair(folder: Path, base: Tensors, tuned: Tensors, **configs: Any) -> tuple[Path, Path]:
    """Write both as safetensors in neighbouring folders. base_config, tuned_config: contents of config.json."""
    return (
        write(folder / "base", base, configs.get("base_config")),
        write(folder / "tuned", tuned, configs.get("tuned_config")),
    )


def cast(tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> Tensors:
    """Convert to another dtype."""
    return {name: tensor.to(dtype) for name, tensor in tensors.items()}
