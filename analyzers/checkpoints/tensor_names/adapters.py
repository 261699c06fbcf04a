"""Adapters (LoRA and similar methods): parameters added to a model, stored without it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from analyzers.checkpoints.reference import quoted
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

IS_ADAPTER = "This is an adapter"


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


def adapter_note(config: Mapping[str, Any] | None, tensors: Sequence[Tensor]) -> str:
    """Write a note that the checkpoint is an adapter. config: the unchecked contents of adapter_config.json."""
    base = (config or {}).get("base_model_name_or_path")
    of = f" of {quoted(base, 100)}, as its adapter_config.json says" if isinstance(base, str) and base else ""
    image = any(_OF_IMAGE_MODELS.search(tensor.name) for tensor in tensors)
    kind = "LoRA or the like of an image model, in kohya's layout" if image else "LoRA or the like"
    return f"{IS_ADAPTER} ({kind}){of}: all results are about its own parameters, not about the model they change."
