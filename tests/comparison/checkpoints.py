"""Makes small checkpoints of every kind of file from fixed seeds, with the same bytes and so the same commits on each machine."""

import json
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import save_file

State = dict[str, torch.Tensor]


def make(folder: Path) -> None:
    """Write all checkpoints into a new ``folder``, one folder or file each."""
    base, tuned = _state(0), _tuned(_state(0))
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32), ("fp64", torch.float64)):
        _write(folder / name, {key: value.to(dtype) for key, value in base.items()})
        _write(folder / f"{name}-tuned", {key: value.to(dtype) for key, value in tuned.items()})
    _write(folder / "fp32-was-bf16", {key: value.bfloat16().float() for key, value in base.items()})
    _write(folder / "bf16-was-fp16", {key: value.half().bfloat16() for key, value in base.items()})
    _write(folder / "mixed", {key: value.bfloat16() if value.ndim == 1 else value.half() for key, value in base.items()})
    _write(folder / "hostile-values", _with_special_values(base))
    for name, fp8 in (("fp8-e4m3", torch.float8_e4m3fn), ("fp8-e5m2", torch.float8_e5m2)):
        _write(folder / name, {key: (value * 8).to(fp8) if value.ndim == 2 else value.bfloat16() for key, value in base.items()})
    _write(folder / "mxfp4", _mxfp4(base))
    resized = {key: torch.cat([value, value[:8]]) if "embed" in key or "lm_head" in key else value for key, value in tuned.items()}
    _write(folder / "resized", {key: value.bfloat16() for key, value in resized.items()})
    _write_gguf(folder / "model.gguf", base)
    (folder / "pickled").mkdir()
    torch.save({key: value.bfloat16() for key, value in tuned.items()}, folder / "pickled" / "pytorch_model.bin")


def _state(seed: int, layers: int = 3, width: int = 128, vocabulary: int = 512) -> State:
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * 0.02

    state = {"model.embed_tokens.weight": matrix(vocabulary, width)}
    for layer in range(layers):
        at = f"model.layers.{layer}"
        for name in "qkvo":
            state[f"{at}.self_attn.{name}_proj.weight"] = matrix(width, width)
        for name in ("gate", "up"):
            state[f"{at}.mlp.{name}_proj.weight"] = matrix(3 * width, width)
        state[f"{at}.mlp.down_proj.weight"] = matrix(width, 3 * width)
        for name in ("input_layernorm", "post_attention_layernorm"):
            state[f"{at}.{name}.weight"] = 1 + torch.randn(width, generator=generator) * 0.1
    return state | {"model.norm.weight": torch.ones(width), "lm_head.weight": matrix(vocabulary, width)}


def _tuned(state: State) -> State:
    """Move a third of the values by a relative 2^-10 to 2^-5, and others by far less than bf16 resolves."""
    generator = torch.Generator().manual_seed(1)
    tuned = {}
    for name, value in state.items():
        moved = torch.rand(value.shape, generator=generator) < 0.3
        step = 2.0 ** -(5 + 5 * torch.rand(value.shape, generator=generator))
        tuned[name] = torch.where(moved, value * (1 + step), value * (1 + 1e-6))
    return tuned


def _with_special_values(state: State) -> State:
    """Insert NaN, infinities, both zeros, subnormals and values that overflow or flush to zero in fp16."""
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-45, 1e-40, 7e4, -65519.0, 65520.0, 2e-8, 3e-8, 1e-5])
    changed = {name: value.clone() for name, value in state.items()}
    for value in changed.values():
        value.reshape(-1)[: len(special)] = special
    return changed


def _mxfp4(state: State) -> State:
    generator = torch.Generator().manual_seed(2)
    packed: State = {name: value.bfloat16() for name, value in state.items() if "mlp" not in name}
    for layer in range(3):
        for name, rows in (("gate_up_proj", 64), ("down_proj", 32)):
            key = f"model.layers.{layer}.mlp.experts.{name}"
            packed[f"{key}_blocks"] = torch.randint(0, 256, (2, rows, 4, 16), generator=generator, dtype=torch.uint8)
            packed[f"{key}_scales"] = torch.randint(115, 125, (2, rows, 4), generator=generator, dtype=torch.uint8)
    return packed


def _write(folder: Path, state: State) -> None:
    folder.mkdir()
    save_file({name: value.contiguous() for name, value in state.items()}, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}))


def _write_gguf(path: Path, state: State) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    for number, (name, value) in enumerate(state.items()):
        array = value.numpy()
        if array.ndim == 1 or number % 3 == 0:
            writer.add_tensor(name, array)
        elif number % 3 == 1:
            writer.add_tensor(name, array.astype(np.float16))
        else:
            writer.add_tensor(name, gguf.quants.quantize(array, Kind.Q8_0), raw_dtype=Kind.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
