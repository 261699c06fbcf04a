"""Adapters, compared with peft: bases and adapters are written by transformers and peft, and merged by both."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from analyzers.checkpoints import Access, Checkpoint, open_checkpoint, stream, whole_spans
from analyzers.numerics.conversions import fp32_of

LOCAL = Access(local=True)


def llama(**settings: Any) -> LlamaForCausalLM:
    """A tiny Llama with grouped queries."""
    sizes = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**{**sizes, "num_key_value_heads": 2, **settings}))


def write(
    model: Any, config: LoraConfig, folder: Path, base: bool = True, change: Callable[[Any], None] | None = None, seed: int = 1
) -> None:
    """Write ``folder``/base in bf16 and an adapter with random matrices, ``folder``/adapter. change: of the model with the adapter."""
    if base:
        model.to(torch.bfloat16).save_pretrained(folder / "base")
    tuned = get_peft_model(AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32), config)
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(
                    parameter * (1 + 0.1 * torch.rand_like(parameter)) if "magnitude" in name else torch.randn_like(parameter) / 20
                )
    if change is not None:
        change(tuned)
    tuned.save_pretrained(str(folder / ("adapter" if seed == 1 else f"adapter-{seed}")))


def merged_by_peft(folder: Path, adapters: tuple[str, ...] = ("adapter",), weights: tuple[float, ...] = (1.0,)) -> dict[str, torch.Tensor]:
    """Merge with peft, in fp32, and return the tensors of the model as it is saved."""
    base = AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)
    model: Any = PeftModel.from_pretrained(base, folder / adapters[0], adapter_name=adapters[0])
    for name in adapters[1:]:
        model.load_adapter(folder / name, adapter_name=name)
    for module in model.modules():
        for name, weight in zip(adapters, weights, strict=True):
            if weight != 1 and hasattr(module, "set_scale"):
                module.set_scale(name, weight)
    model.merge_and_unload(adapter_names=list(adapters)).save_pretrained(folder / "merged")
    return load_file(folder / "merged" / "model.safetensors")


def values(checkpoint: Checkpoint) -> dict[str, NDArray[np.float32]]:
    """Read all tensors of a checkpoint as fp32, through a stream."""
    found = {tensor.name: np.empty(tensor.elements, np.uint32) for tensor in checkpoint.tensors}
    kinds = {tensor.name: tensor for tensor in checkpoint.tensors}

    def work(span: Any, chunks: Any) -> None:
        for chunk in chunks:
            codes = fp32_of(np.asarray(chunk.codes), span.tensor.counted_as)
            found[span.tensor.name][chunk.start : chunk.start + len(codes)] = codes

    for _ in stream([checkpoint], whole_spans([(tensor,) for tensor in checkpoint.tensors]), work):
        pass
    return {name: codes.view(np.float32).reshape(kinds[name].shape) for name, codes in found.items()}


def merged_here(folder: Path, reference: str = "{0}/base+{0}/adapter") -> dict[str, NDArray[np.float32]]:
    """Read all tensors of a merged reference."""
    with open_checkpoint(reference.format(folder), LOCAL) as checkpoint:
        return values(checkpoint)


def assert_same(ours: dict[str, NDArray[np.float32]], theirs: dict[str, torch.Tensor]) -> None:
    """Assert that all tensors are equal, up to two roundings of the product B A: numpy and torch add its terms in different orders.

    A head that peft leaves tied to a changed embedding may be stored.
    """
    assert theirs.keys() <= ours.keys() <= {*theirs, "lm_head.weight"}
    for name, tensor in theirs.items():
        expected = tensor.float().numpy()
        assert ours[name].shape == expected.shape, name
        assert np.allclose(ours[name], expected, rtol=0, atol=2**-22 * np.abs(expected).max()), name
