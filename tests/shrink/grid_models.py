"""Saves small models whose linear layers a quantizer made, and decodes packed integers by their definition, without the code under test."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from transformers import GptOssConfig, GptOssForCausalLM, LlamaConfig, LlamaForCausalLM, set_seed

from tests.grids.formats import FORMATS

QUANTIZERS = {form.name: form.make for form in FORMATS}


def save_llama(folder: Path, quantizer: str, dtype: torch.dtype, kept: Collection[str] = (), shard: str = "1GB") -> Path:
    """Save a Llama of two layers, dequantized in ``dtype``; ``kept``: names of modules that are not quantized, beside the head."""
    set_seed(0)
    sizes: Any = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 512}
    model: Any = LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=False))
    model = model.to(dtype)
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name not in {"lm_head", *kept}:
            module.weight.data = QUANTIZERS[quantizer](module.weight.data.float(), dtype).to(dtype)
    model.save_pretrained(folder, max_shard_size=shard)
    return folder


def save_gpt_oss(folder: Path) -> Path:
    """Save a model of the gpt-oss architecture, whose experts were dequantized from MXFP4 to bf16."""
    set_seed(0)
    sizes: Any = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    model: Any = GptOssForCausalLM(GptOssConfig(**sizes, head_dim=16, vocab_size=256, num_local_experts=4, num_experts_per_tok=2))
    model = model.to(torch.bfloat16)
    for name, experts in model.named_parameters():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            quantized = [QUANTIZERS["torchao mxfp4"](expert.T.float().contiguous(), torch.float32).T for expert in experts.data]
            experts.data = torch.stack(quantized).to(torch.bfloat16).contiguous()
    model.save_pretrained(folder)
    return folder


def unpacked(stored: dict[str, torch.Tensor], name: str, bits: int) -> torch.Tensor:
    """Decode ``name`` as compressed-tensors defines pack-quantized: int32 of codes raised by 2^(bits-1), from the lowest bits on.

    The product is computed in the dtype of the scale.
    """
    packed, scale = stored[f"{name}_packed"], stored[f"{name}_scale"]
    rows, columns = stored[f"{name}_shape"].tolist()
    codes = torch.stack([(packed >> bits * i) & (1 << bits) - 1 for i in range(32 // bits)], dim=-1).reshape(rows, columns)
    groups = (codes - (1 << bits - 1)).to(scale.dtype).reshape(rows, scale.shape[1], -1)
    values: torch.Tensor = (groups * scale[:, :, None]).reshape(rows, columns)
    return values
