"""How each family of models names the linear maps of its layers.

A decoder layer has an FFN and an attention, each a module with linear maps in it. Several maps may be parts of one module: gate and up, or
query, key and value, that are computed in one product. Experts are not modules but slices of 3-D parameters.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

Rows = slice | Tensor  # outputs of a linear map, by number


def _thirds(config: Any) -> dict[str, Rows]:
    """All queries, all keys, all values, as many of each."""
    width = config.hidden_size
    return {name: slice(i * width, (i + 1) * width) for i, name in enumerate("qkv")}


def _grouped(config: Any) -> dict[str, Rows]:
    """All queries, all keys, all values; fewer keys and values than queries."""
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    queries, keys = config.num_attention_heads * size, config.num_key_value_heads * size
    return {"q": slice(0, queries), "k": slice(queries, queries + keys), "v": slice(queries + keys, queries + 2 * keys)}


def _one_key(config: Any) -> dict[str, Rows]:
    """All queries, one key, one value; or, where all heads have their own, head by head."""
    if not config.multi_query:
        return _by_head(config)
    width = config.hidden_size
    size = width // config.num_attention_heads
    return {"q": slice(0, width), "k": slice(width, width + size), "v": slice(width + size, width + 2 * size)}


def _by_head(config: Any) -> dict[str, Rows]:
    """Head by head: its queries, its keys, its values."""
    return _by_group(config, config.num_attention_heads)


def _by_group(config: Any, groups: int) -> dict[str, Rows]:
    """Group by group: the queries of its heads, the keys and values they share."""
    heads = config.num_attention_heads
    size = config.hidden_size // heads
    rows = torch.arange((heads + 2 * groups) * size).view(groups, heads // groups + 2, size)
    return {"q": rows[:, :-2].flatten(), "k": rows[:, -2].flatten(), "v": rows[:, -1].flatten()}


def _falcon(config: Any) -> dict[str, Rows]:
    """By group in the newer form of the family; in the older one all heads share one key and value, or each has its own."""
    if config.new_decoder_architecture:
        return _by_group(config, config.num_kv_heads)
    return _by_group(config, 1) if config.multi_query else _by_head(config)


@dataclass(frozen=True, slots=True)
class FFNNames:
    """Modules of an FFN, inside the module ``where`` of a layer ("" for the layer itself). Equal names are halves of one module."""

    up: str
    down: str
    activation: str
    gate: str | None = None
    where: str = "mlp"


@dataclass(frozen=True, slots=True)
class AttentionNames:
    """Modules of an attention, inside the module ``where``. fused: the rows of q, k and v where they are one module."""

    where: str = "self_attn"
    q: str = "q_proj"
    k: str = "k_proj"
    v: str = "v_proj"
    o: str = "o_proj"
    fused: Callable[[Any], Mapping[str, Rows]] | None = None


@dataclass(frozen=True, slots=True)
class Family:
    """Names of a family. experts: a module with all experts of a layer; shared: an FFN beside them that every token goes through.

    A layer of such a family that has no experts has the ``ffn``. multiplied, divided, bounded: settings by which what the head gives is
    multiplied or divided, and the cap that bounds it, where the family has such (`head.LogitMap`).
    """

    ffn: FFNNames
    attention: AttentionNames
    experts: str | None = None
    shared: FFNNames | None = None
    multiplied: str | None = None
    divided: str | None = None
    bounded: str | None = None


def _fused(where: str, name: str, output: str, rows: Callable[[Any], Mapping[str, Rows]]) -> AttentionNames:
    return AttentionNames(where, name, name, name, output, rows)


_GATED = FFNNames("up_proj", "down_proj", "act_fn", "gate_proj")
_PLAIN = FFNNames("up_proj", "down_proj", "act_fn")
_HALVES = FFNNames("gate_up_proj", "down_proj", "activation_fn", "gate_up_proj")
_DENSE = FFNNames("dense_h_to_4h", "dense_4h_to_h", "act")
_LLAMA = Family(_GATED, AttentionNames())
_GEMMA = replace(_LLAMA, bounded="final_logit_softcapping")
_GRANITE = replace(_LLAMA, divided="logits_scaling")
_EXPERTS = replace(_LLAMA, experts="mlp.experts")

FAMILIES: dict[str, Family] = {
    **dict.fromkeys(("llama", "mistral", "ministral", "ministral3", "qwen2", "qwen3", "gemma", "olmo", "olmo2", "olmo3"), _LLAMA),
    **dict.fromkeys(("smollm3", "stablelm", "exaone4", "ernie4_5", "seed_oss", "hunyuan_v1_dense", "helium", "cwm"), _LLAMA),
    **dict.fromkeys(("gemma2", "gemma3_text", "vaultgemma"), _GEMMA),
    **dict.fromkeys(("cohere", "cohere2"), replace(_LLAMA, multiplied="logit_scale")),
    "hyperclovax": replace(_LLAMA, multiplied="logits_scaling"),
    "granite": _GRANITE,
    **dict.fromkeys(("nemotron", "arcee", "jais2", "apertus"), Family(_PLAIN, AttentionNames())),
    **dict.fromkeys(("glm", "glm4"), Family(_HALVES, AttentionNames())),
    "phi3": Family(_HALVES, _fused("self_attn", "qkv_proj", "o_proj", _grouped)),
    "phi": Family(FFNNames("fc1", "fc2", "activation_fn"), AttentionNames(o="dense")),
    "starcoder2": Family(FFNNames("c_fc", "c_proj", "act"), AttentionNames()),
    "gpt2": Family(FFNNames("c_fc", "c_proj", "act"), _fused("attn", "c_attn", "c_proj", _thirds)),
    "gpt_bigcode": Family(FFNNames("c_fc", "c_proj", "act"), _fused("attn", "c_attn", "c_proj", _one_key)),
    "gpt_neo": Family(FFNNames("c_fc", "c_proj", "act"), AttentionNames("attn.attention", o="out_proj")),
    "gptj": Family(FFNNames("fc_in", "fc_out", "act"), AttentionNames("attn", o="out_proj")),
    "gpt_neox": Family(_DENSE, _fused("attention", "query_key_value", "dense", _by_head)),
    "opt": Family(FFNNames("fc1", "fc2", "activation_fn", where=""), AttentionNames(o="out_proj")),
    "bloom": Family(
        FFNNames("dense_h_to_4h", "dense_4h_to_h", "gelu_impl"), _fused("self_attention", "query_key_value", "dense", _by_head)
    ),
    "falcon": Family(_DENSE, _fused("self_attention", "query_key_value", "dense", _falcon)),
    "mpt": Family(FFNNames("up_proj", "down_proj", "act", where="ffn"), _fused("attn", "Wqkv", "out_proj", _thirds)),
    **dict.fromkeys(("mixtral", "qwen3_moe", "gpt_oss", "olmoe", "flex_olmo", "phimoe", "minimax_m2"), _EXPERTS),
    "qwen2_moe": replace(_EXPERTS, shared=replace(_GATED, where="mlp.shared_expert")),
    **dict.fromkeys(
        ("glm4_moe", "dots1", "ernie4_5_moe", "exaone_moe"), replace(_EXPERTS, shared=replace(_GATED, where="mlp.shared_experts"))
    ),
    "granitemoe": replace(_GRANITE, experts="block_sparse_moe.experts"),
    "granitemoeshared": replace(
        _GRANITE,
        experts="block_sparse_moe.experts",
        shared=FFNNames("input_linear", "output_linear", "activation", "input_linear", where="shared_mlp"),
    ),
}
