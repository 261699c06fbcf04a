"""Writes local checkpoints of known history, without the code under test."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

Floats = NDArray[np.float32]

# Name in the header of each dtype stored in tests.
NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip


def normal(*shape: int, seed: int = 0, scale: float = 0.02) -> torch.Tensor:
    """Draw fp32 values with the distribution of weights."""
    return torch.from_numpy((np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32))


def through(values: torch.Tensor, *dtypes: torch.dtype) -> torch.Tensor:
    """Cast ``values`` to one dtype after the other."""
    for dtype in dtypes:
        values = values.to(dtype)
    return values


def from_fp8(values: torch.Tensor, fp8: torch.dtype, stored: torch.dtype, block: int = 128) -> torch.Tensor:
    """Quantize to fp8 with one scale per ``block`` columns, and dequantize to ``stored``, as fp8 checkpoints are converted."""
    parts = []
    for part in torch.split(values, block, dim=-1):
        scale = part.abs().amax() / torch.finfo(fp8).max
        parts.append((part / scale).to(fp8).to(torch.float32) * scale)
    return torch.cat(parts, dim=-1).to(stored)


def write(folder: Path, tensors: Mapping[str, torch.Tensor], config: Mapping[str, Any] | None = None) -> Path:
    """Write one safetensors file and ``config`` into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_sharded(folder: Path, tensors: Mapping[str, torch.Tensor], shards: int) -> Path:
    """Write ``shards`` safetensors files with an index into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    names = list(tensors)
    weight_map = {name: f"model-{i % shards + 1:05}-of-{shards:05}.safetensors" for i, name in enumerate(names)}
    for file in set(weight_map.values()):
        save_file({name: tensors[name].contiguous() for name in names if weight_map[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder
