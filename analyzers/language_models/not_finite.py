"""Error for a model whose values are not finite."""

import torch

from analyzers.errors import InvalidCheckpoint


def not_finite(what: str, dtype: torch.dtype) -> InvalidCheckpoint:
    """The error to raise for ``what``, such as "The model's losses", for a model running in ``dtype``."""
    kind = str(dtype).removeprefix("torch.")
    narrow = dtype in (torch.float16, torch.bfloat16)
    advice = "choose --dtype float32, or another model" if narrow else "its weights are damaged or too large"
    return InvalidCheckpoint(f"{what} are not finite when it runs in {kind}: {advice}.")
