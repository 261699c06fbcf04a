"""Cleans an untrusted config.json before transformers sees it.

Entries that could download or run code, name files, or ask for more outputs than logits are removed, and the numbers of layers and experts
are bounded: a model without weights allocates no memory for them, but takes time for each layer and expert.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from analyzers.checkpoints import quoted
from analyzers.core.errors import LimitExceeded

_MODEL_LAYERS = 2_048  # Layers are inspected one by one before a run; the deepest models have about 200.
_MODEL_EXPERTS = 100_000  # Experts of all layers together; the largest models have about 25,000.
_LAYERS = re.compile(r"(n|num)_(\w+_)?layers?")
_REPEATED = re.compile(r"\w*(layers?|depths?|blocks?|groups?)(_num)?")  # keys that may state how often something is built
_EXPERTS = re.compile(r"(moe_)?(n|num)_(local_|routed_)?experts")
_REPEATS = re.compile(r"attention_types")  # GPT-Neo: [[["global", "local"], 12]], layer types and repeat counts
_REMOVED = re.compile(
    r"auto_map|\w*(attn|experts)_implementation\w*|_?name_or_path|_commit_hash|quantization_config|\w*_plan|\w*kernel_config|use_kernels"
    r"|distributed_config|fusion_config|device_map|transformers_weights|custom_pipelines|gguf_file|slow_but_exact|return_dict"
    r"|output_(attentions|hidden_states|router_logits)"
)
LABELS = re.compile(r"num_labels|id2label|label2id")


def check_counts(stated: Mapping[str, Any]) -> None:
    """Raise LimitExceeded for too many layers, or too many experts in total."""
    every = list(numbers(stated))
    repeated = max(((value, name) for name, value in every if _REPEATED.fullmatch(name) or _REPEATS.fullmatch(name)), default=(0, ""))
    if repeated[0] > _MODEL_LAYERS:
        raise LimitExceeded(f"The model has {repeated[0]:,} layers, more than {_MODEL_LAYERS:,}, by {quoted(repeated[1])} in config.json.")
    layers, experts = (max((value for name, value in every if kind.fullmatch(name)), default=0) for kind in (_LAYERS, _EXPERTS))
    if layers * experts > _MODEL_EXPERTS:
        raise LimitExceeded(f"The model has {experts:,} experts in each of {layers:,} layers, more than {_MODEL_EXPERTS:,} in all.")


def numbers(value: Any, name: str = "") -> Iterator[tuple[str, int]]:
    """Yield every integer in config.json, at any depth and in lists, with the key it is under."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from numbers(inner, str(key))
    elif isinstance(value, list):
        for inner in value:
            yield from numbers(inner, name)
    elif isinstance(value, int):
        yield name, value


def safe_config(stated: Any, also: re.Pattern[str] | None = None) -> Any:
    """Remove forbidden entries from config.json at any depth; infinities, written as {"__float__": "Infinity"}, are decoded.

    also: names of more entries to remove.
    """
    if isinstance(stated, dict):
        if stated.keys() == {"__float__"}:
            return float(stated["__float__"])
        kept = {name: value for name, value in stated.items() if not _REMOVED.fullmatch(str(name))}
        return {name: safe_config(value, also) for name, value in kept.items() if also is None or not also.fullmatch(str(name))}
    return [safe_config(value, also) for value in stated] if isinstance(stated, list) else stated
