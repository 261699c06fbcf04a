"""Adapters (LoRA and similar methods): parameters added to a model, stored without it."""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from analyzers.checkpoints.tensor import Tensor

# Parameters of peft's adapters: low-rank factors, scaling vectors, soft prompts.
_PARAMETERS = re.compile(
    r"(^|\.)(lora_(A|B|embedding_A|embedding_B|magnitude_vector)|lora_[ab]|ia3_l|hada_w[12]_[ab]|lokr_w[12](_[ab])?|oft_(r|R)|vera_lambda_[bd]"
    r"|prompt_embeddings)(\.|$)"
)
# Parameters of adapters of image models: kohya's scripts and LyCORIS, diffusers before peft, and XLabs.
_OF_IMAGE_MODELS = re.compile(
    r"^lora_(unet|te\d?|transformer|prior)_|(^|[._])(lora(_(linear|conv|linear_layer))?\d?[._](down|up|mid)|hada_t[12]|lokr_t2|oft_blocks"
    r"|oft_diag|dora_scale)(\.|$)"
)
# Each of these names has one of these parts: most names have none, which is faster to see
_PARTS = ("lora", "ia3_l", "hada_", "lokr_", "oft_", "vera_lambda_", "prompt_embeddings", "dora_scale")


@lru_cache(1 << 17)  # asked several times of each name
def is_adapter_parameter(name: str) -> bool:
    """Return whether a tensor has the name of an adapter's parameter."""
    return any(part in name for part in _PARTS) and bool(_PARAMETERS.search(name) or _OF_IMAGE_MODELS.search(name))


def adapter_rank(tensors: Sequence[Tensor]) -> int:
    """Return the largest rank of the low-rank factors among ``tensors``; 0 if there are none."""
    factors = [tensor for tensor in tensors if is_adapter_parameter(tensor.name) and len(tensor.shape) > 1]
    return max((min(tensor.shape) for tensor in factors), default=0)


def is_adapter(paths: Iterable[str], tensors: Sequence[Tensor]) -> bool:
    """Return whether weight files are an adapter: by their names, or because most tensors, in number and in size, are an adapter's."""
    named = [tensor for tensor in tensors if is_adapter_parameter(tensor.name)]
    most = 2 * len(named) > len(tensors) and 2 * sum(t.elements for t in named) > sum(t.elements for t in tensors)
    return most or all(path.rpartition("/")[2].startswith("adapter_model.") for path in paths)
