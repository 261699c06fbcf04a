"""Settings of torch that belong to the whole process: put in place while something computes, and then put back."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from analyzers.precision_variants.variants import Settings

REDUCED = ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction")


@contextmanager
def arithmetic(settings: Settings, device: str) -> Iterator[None]:
    """Inside, fp32 products are exact to fp32 but for "tf32", and 16-bit products are added up as the settings say. A CPU has neither."""
    if device != "cuda":
        yield
        return
    matmul = torch.backends.cuda.matmul
    precision, reduced = torch.get_float32_matmul_precision(), {name: getattr(matmul, name) for name in REDUCED}
    try:
        torch.set_float32_matmul_precision("high" if settings.dtype == "tf32" else "highest")
        for name in REDUCED:
            setattr(matmul, name, settings.reduced_reductions)
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        for name, value in reduced.items():
            setattr(matmul, name, value)
