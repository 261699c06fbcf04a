"""Names of adapters' parameters: those that peft saves for LoRA, and the spellings that are refused with what merges them."""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from analyzers.checkpoints.tensor import Tensor

# The path of a module, the part of it that a parameter is, and the name of the adapter, which peft leaves out when it saves.
PEFT = re.compile(
    r"(?P<path>.+)\.lora_(?:(?P<matrix>A|B)(?:\.(?P<label>[^.]+))?\.weight"
    r"|(?P<other>embedding_A|embedding_B|magnitude_vector)(?:\.(?!weight$)(?P<other_label>[^.]+))?(?:\.weight)?)"
)
# Names of other spellings and methods, what they are, and what merges them into a model.
_OTHERS = (
    (r"\.weight\.lora_[ab]$", "the names of GGUF", "llama-export-lora of llama.cpp"),
    (
        r"^lora_(unet|te\d?|transformer|prior)_|(^|[._])lora(_(linear|conv|linear_layer))?\d?[._](down|up|mid)(\.|$)",
        "the names of kohya's scripts or of diffusers",
        "load_lora_weights and fuse_lora of diffusers",
    ),
    (
        r"(^|[._])(lora_(A|B|a|b|E|bias|embedding_[AB]|magnitude_vector)|ia3_l|hada_[wt][12](_[ab])?|lokr_[wt][12](_[ab])?|vera_lambda_[bd]"
        r"|oft_(r|R|blocks|diag)|prompt_embeddings|trainable_tokens_\w+|dora_scale)(\.|$)",
        "another method or other names",
        "merge_and_unload of peft, or the program that wrote it",
    ),
)
_COMPILED = tuple((re.compile(pattern), what, how) for pattern, what, how in _OTHERS)
# Each of these names has one of these parts; most names have none, which is faster to see.
_PARTS = re.compile("lora|ia3_l|hada_|lokr_|oft_|vera_lambda_|prompt_embeddings|trainable_tokens_|dora_scale")


def other_spelling(name: str) -> tuple[str, str] | None:
    """Return what a parameter of an adapter is if peft does not save LoRA under such a name, and what merges it; else None."""
    if not _PARTS.search(name) or PEFT.fullmatch(name):
        return None
    return next(((what, how) for pattern, what, how in _COMPILED if pattern.search(name)), None)


@lru_cache(1 << 17)  # asked several times of each name
def is_adapter_parameter(name: str) -> bool:
    """Return whether a tensor has the name of an adapter's parameter."""
    return bool(_PARTS.search(name)) and bool(PEFT.fullmatch(name) or other_spelling(name))


def adapter_rank(tensors: Sequence[Tensor]) -> int:
    """Return the largest rank of the low-rank factors among ``tensors``; 0 if there are none."""
    factors = [tensor for tensor in tensors if is_adapter_parameter(tensor.name) and len(tensor.shape) > 1]
    return max((min(tensor.shape) for tensor in factors), default=0)


def is_adapter(paths: Iterable[str], tensors: Sequence[Tensor]) -> bool:
    """Return whether weight files are an adapter: by their names, or because most tensors, in number and in size, are an adapter's."""
    named = [tensor for tensor in tensors if is_adapter_parameter(tensor.name)]
    most = 2 * len(named) > len(tensors) and 2 * sum(t.elements for t in named) > sum(t.elements for t in tensors)
    return most or all(path.rpartition("/")[2].startswith("adapter_model.") for path in paths)
