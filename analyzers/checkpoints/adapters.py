"""Adapters (LoRA and similar methods): parameters added to a model, stored without it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from analyzers.checkpoints.reference import quoted
from analyzers.checkpoints.tensor import Tensor

# Parameters of peft's adapters: low-rank factors, scaling vectors, soft prompts.
_PARAMETERS = re.compile(
    r"(^|\.)(lora_(A|B|embedding_A|embedding_B|magnitude_vector)|lora_[ab]|ia3_l|hada_w[12]_[ab]|prompt_embeddings)(\.|$)"
)


def is_adapter(paths: Iterable[str], tensors: Sequence[Tensor]) -> bool:
    """Whether weight files are an adapter: by their names, or because most of their tensors have names of an adapter's parameters."""
    named = sum(bool(_PARAMETERS.search(tensor.name)) for tensor in tensors)
    return 2 * named > len(tensors) or all(path.rpartition("/")[2].startswith("adapter_model.") for path in paths)


def adapter_note(config: Mapping[str, Any] | None) -> str:
    """A note that the checkpoint is an adapter. config: the unchecked contents of adapter_config.json."""
    base = (config or {}).get("base_model_name_or_path")
    of = f" of {quoted(base, 100)}, as its adapter_config.json says" if isinstance(base, str) and base else ""
    return f"This is an adapter (LoRA or the like){of}: all results are about its own parameters, not about the model they change."
