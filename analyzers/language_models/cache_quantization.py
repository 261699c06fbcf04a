"""Attention whose keys and values pass through an fp8 cache, as engines store them on request."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

FP8_CACHE = "sdpa_fp8_cache"
"""Name of the attention implementation."""


def supports_fp8_cache(model: nn.Module) -> bool:
    """Return whether the model lets its attention be chosen at run time."""
    return bool(getattr(model, "_supports_attention_backend", False))


def _attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *others: Any, **named: Any) -> Any:
    return sdpa_attention_forward(module, query, _stored(key), _stored(value), *others, **named)


def _stored(values: Tensor) -> Tensor:
    """Round to E4M3 with a scale of 1, the engines' default without calibration."""
    largest = torch.finfo(torch.float8_e4m3fn).max
    return values.clamp(-largest, largest).to(torch.float8_e4m3fn).to(values.dtype)


AttentionInterface.register(FP8_CACHE, _attend)
AttentionMaskInterface.register(FP8_CACHE, sdpa_mask)
