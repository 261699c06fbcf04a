"""What torch and transformers compute a variant with: attention, TF32, accumulation. Set for a computation, then restored."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import torch
from torch import nn

from analyzers.checkpoints import quoted
from analyzers.errors import InvalidRequest
from analyzers.language_models.ffn import text_config
from analyzers.language_models.load import OpenModel
from analyzers.precision_variants.variants import Settings

# Families whose attention class is chosen at construction and cannot be changed afterwards.
_BUILT_IN = ("gptj", "gpt_neo", "falcon", "bloom")
_REDUCED = ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction")


def implementation(name: str, settings: Settings, opened: OpenModel) -> str:
    """The name of its attention in transformers. Raises InvalidRequest where that is not available."""
    asked, kind = settings.attention or opened.attention, quoted(str(text_config(opened.outline).model_type))
    supports_flash = getattr(opened.outline, "_supports_flash_attn", False) and text_config(opened.outline).model_type not in _BUILT_IN
    problem = None
    if asked == "sdpa" and opened.attention != "sdpa" and not getattr(opened.outline, "_supports_sdpa", False):
        problem = f"sdpa attention, which models of type {kind} do not support: choose eager"
    elif asked == "flash" and find_spec("flash_attn") is None:
        problem = "flash attention, which is not installed: pip install flash-attn, or choose sdpa"
    elif asked == "flash" and opened.device != "cuda":
        problem = "flash attention, which needs a GPU: choose sdpa"
    elif asked == "flash" and not supports_flash:
        problem = f"flash attention, which models of type {kind} do not support: choose sdpa"
    elif asked == "flash" and "softmax" in settings.fp32:
        problem = "flash attention in fp32, which does not exist: leave out softmax, or choose sdpa"
    if problem is not None:
        raise InvalidRequest(f"Variant {name} asks for {problem}.")
    return "flash_attention_2" if asked == "flash" else asked


@contextmanager
def attention(model: nn.Module, implementation: str) -> Iterator[None]:
    """Within the context, the model's attention runs by this implementation."""
    config = text_config(model)
    before = config._attn_implementation
    config._attn_implementation = implementation
    try:
        yield
    finally:
        config._attn_implementation = before


@contextmanager
def arithmetic(settings: Settings, device: str) -> Iterator[None]:
    """Within the context on a GPU: TF32 only for dtype "tf32", and reductions of 16-bit products as set. A CPU has neither setting."""
    if device != "cuda":
        yield
        return
    matmul = torch.backends.cuda.matmul
    precision, reduced = torch.get_float32_matmul_precision(), {name: getattr(matmul, name) for name in _REDUCED}
    try:
        torch.set_float32_matmul_precision("high" if settings.dtype == "tf32" else "highest")
        for name in _REDUCED:
            setattr(matmul, name, settings.reduced_reductions)
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        for name, value in reduced.items():
            setattr(matmul, name, value)
