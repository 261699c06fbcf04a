"""Treats models in memory as checkpoints: modules of torch and state dicts, with their tokenizer."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from analyzers.checkpoints import MemoryRepository, MemoryTensor, quoted
from analyzers.core.errors import InvalidRequest, UnsupportedWeights

# Names of torch's dtypes in safetensors.
DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2", torch.float8_e4m3fnuz: "F8_E4M3FNUZ", torch.float8_e5m2fnuz: "F8_E5M2FNUZ", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL", torch.uint64: "U64",
    torch.uint32: "U32", torch.uint16: "U16", torch.float8_e8m0fnu: "F8_E8M0", torch.complex64: "C64",
}  # fmt: skip
_PATTERNS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def in_memory(name: str, model: nn.Module | Mapping[str, Tensor], tokenizer: Any = None) -> MemoryRepository:
    """Return ``model`` as a checkpoint, without copying contiguous tensors; it must not change while it is analyzed.

    model: a module, also inside DistributedDataParallel, DataParallel or torch.compile, or a state dict; among tied tensors the first
    counts. tokenizer: of transformers, saved with the model's config.json to memory. Raises InvalidRequest for a model that is incomplete
    (on the meta device, sharded, half-loaded), wrapped by PEFT, or without tensors; UnsupportedWeights for quantized or otherwise packed
    weights.
    """
    module = unwrapped(model) if isinstance(model, nn.Module) else None
    state = model if not isinstance(model, nn.Module) else unwrapped(model).state_dict()
    if module is not None and getattr(module, "is_quantized", False):
        raise UnsupportedWeights(f"{name} is quantized in memory, and its original weights are gone: name the original model.")
    _check_all_here(name, state)
    return MemoryRepository(name, {key: _tensor(key, value) for key, value in _once(state).items()}, _files(module, tokenizer))


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model without wrappers that leave its weights unchanged. Raises InvalidRequest for wrappers that change them."""
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):  # torch.compile
            model = inner
        else:
            break
    wrapped = type(model).__module__.startswith("peft.")  # its prompts are parameters outside the model
    if wrapped or any(".lora_" in name or ".base_layer." in name for name, _ in model.named_parameters()):
        raise InvalidRequest("This model has PEFT adapters, which are not yet part of its weights: merge them first, merge_and_unload().")
    return model


def _check_all_here(name: str, state: Mapping[str, Any]) -> None:
    if not state:
        raise InvalidRequest(f"{name} has no tensors: pass a model or its state dict.")
    for key, value in state.items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            kind = type(value).__name__
            raise InvalidRequest(
                f"The state dict must hold tensors by name, and {quoted(str(key))} is of the type {kind}: pass the model's own."
            )
    away = [key for key, value in state.items() if value.is_meta]
    if away:
        raise InvalidRequest(
            f"{len(away):,} of {len(state):,} tensors have no values, {quoted(away[0])} first: they are on the meta device, because the "
            "model is only half loaded or offloaded. Load all of it first."
        )


def _once(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Keep the first of tensors that share memory, like a file with tied weights."""
    seen: dict[tuple[object, ...], str] = {}
    chosen = {}
    for key, value in state.items():
        place: tuple[object, ...] = (key,)
        if _is_plain(value) and value.numel():
            place = (value.device, value.data_ptr(), value.shape, value.stride(), value.dtype)
        if seen.setdefault(place, key) == key:
            chosen[key] = value
    return chosen


def _is_plain(value: Tensor) -> bool:
    """Return whether the values are those of one storage, as they are not of sparse, nested and packed tensors."""
    return type(value) in (Tensor, nn.Parameter) and value.layout == torch.strided and not value.is_nested


def _tensor(key: str, value: Tensor) -> MemoryTensor:
    if type(value) not in (Tensor, nn.Parameter):  # such as DTensor, and the packed tensors of torchao and bitsandbytes
        what = "which holds one shard of its values" if type(value).__name__ == "DTensor" else "whose values may be quantized or packed"
        raise UnsupportedWeights(f"{quoted(key)} is a {type(value).__name__}, {what}: pass a state dict of plain tensors.")
    if value.dtype not in DTYPES or not _is_plain(value):
        layout = "a nested tensor" if value.is_nested else str(value.layout)
        raise UnsupportedWeights(f"{quoted(key)} is stored as {value.dtype}, {layout}, which is not read: convert it first.")
    whole = value.detach().resolve_conj().resolve_neg().contiguous()
    flat = whole.reshape(-1)
    patterns = flat.view(_PATTERNS[value.element_size()])
    return MemoryTensor(DTYPES[value.dtype], tuple(value.shape), _reader(flat.view(torch.uint8)), whole, patterns)


def _reader(flat: Tensor) -> Callable[[int, memoryview], None]:
    def read_into(offset: int, buffer: memoryview) -> None:
        np.frombuffer(buffer, np.uint8)[:] = flat[offset : offset + len(buffer)].cpu().numpy()

    return read_into


def _files(module: nn.Module | None, tokenizer: Any) -> dict[str, bytes]:
    """Return config.json and the tokenizer's files, as saving them would write them."""
    with TemporaryDirectory(prefix="mantissa-") as folder:
        if tokenizer is not None:
            if not hasattr(tokenizer, "save_pretrained"):
                raise InvalidRequest(f"tokenizer must be one of transformers, not of the type {type(tokenizer).__name__}.")
            tokenizer.save_pretrained(folder)
        files = {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()}
    config: Any = getattr(module, "config", None)
    if module is not None and hasattr(config, "to_json_string"):
        stated = json.loads(config.to_json_string())
        # Set like save_pretrained does.
        stated |= {"architectures": [type(module).__name__], "dtype": str(getattr(module, "dtype", "")).removeprefix("torch.")}
        files["config.json"] = (json.dumps(stated, indent=2, sort_keys=True) + "\n").encode()
    return files
