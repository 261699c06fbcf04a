"""Process-wide settings of torch, set for the duration of a computation and then restored."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from analyzers.precision_variants.variants import Settings

REDUCED = ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction")


@contextmanager
def arithmetic(settings: Settings, device: str) -> Iterator[None]:
    """Within the context on a GPU: TF32 only for dtype "tf32", and reductions of 16-bit products as set. A CPU has neither setting."""
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
