"""Writes states as checkpoints of every file format."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import save_file

from tests.layouts.architectures import BF16, Architecture, State
from tests.layouts.relayouts import GGUF

Writer = Callable[[Path, State, Architecture], Path]


def write(folder: Path, state: State, config: Mapping[str, Any] | None = None) -> Path:
    """Write one safetensors file and config.json."""
    _configure(folder, config)
    save_file(_stored(state), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_sharded(folder: Path, state: State, config: Mapping[str, Any] | None = None, shards: int = 3) -> Path:
    """Write several safetensors files with an index, with consecutive tensors in different files."""
    _configure(folder, config)
    stored = _stored(state)
    weight_map = {name: f"model-{at % shards + 1:05}-of-{shards:05}.safetensors" for at, name in enumerate(stored)}
    for file in set(weight_map.values()):
        save_file({name: tensor for name, tensor in stored.items() if weight_map[name] == file}, folder / file)
    total = sum(tensor.nbytes for tensor in stored.values())
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))
    return folder


def write_pickle(folder: Path, state: State, config: Mapping[str, Any] | None = None) -> Path:
    """Write with torch.save, so that views stay views of their storage."""
    _configure(folder, config)
    torch.save(dict(state), folder / "pytorch_model.bin")
    return folder


def write_gguf(folder: Path, state: State, architecture: Architecture) -> Path:
    """Write with llama.cpp's package, unquantized: vectors in fp32, all other tensors in their dtype."""
    folder.mkdir(parents=True, exist_ok=True)
    kind = GGUF[architecture.name]
    writer = gguf.GGUFWriter(folder / "model.gguf", gguf.MODEL_ARCH_NAMES[kind])
    for name, tensor in state.items():
        if tensor.dim() == 1:
            writer.add_tensor(name, tensor.float().numpy())
        elif tensor.dtype == BF16:
            codes = tensor.contiguous().view(torch.uint8).numpy()
            writer.add_tensor(name, codes, raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(name, tensor.contiguous().numpy())
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    return folder


WRITERS: dict[str, Writer] = {
    "safetensors": lambda folder, state, of: write(folder, state, of.config),
    "shards": lambda folder, state, of: write_sharded(folder, state, of.config),
    "pickle": lambda folder, state, of: write_pickle(folder, state, of.config),
    "GGUF": write_gguf,
}


def _configure(folder: Path, config: Mapping[str, Any] | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))


def _stored(state: State) -> State:
    """Copy each tensor into its own memory, as safetensors requires."""
    return {name: tensor.contiguous().clone() for name, tensor in state.items()}
