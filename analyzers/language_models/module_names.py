"""Names the linear maps in the layers of each model family.

A decoder layer has an FFN and an attention module, each containing linear maps. Several maps may be fused into one module: gate and up, or
query, key and value, computed in one product. Experts are not modules but slices of 3-D parameters. Some families have layers with a
convolution, a state-space model or linear attention in place of attention: those layers have an FFN and no attention projections to
measure.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

Rows = slice | Tensor  # output indices of a linear map


def _thirds(config: Any) -> dict[str, Rows]:
    """Return the rows of all queries, all keys, all values, in equal numbers."""
    width = config.hidden_size
    return {name: slice(i * width, (i + 1) * width) for i, name in enumerate("qkv")}


def _grouped(config: Any) -> dict[str, Rows]:
    """Return the rows of all queries, all keys, all values, with fewer keys and values than queries."""
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    queries, keys = config.num_attention_heads * size, config.num_key_value_heads * size
    return {"q": slice(0, queries), "k": slice(queries, queries + keys), "v": slice(queries + keys, queries + 2 * keys)}


def _one_key(config: Any) -> dict[str, Rows]:
    """Return the rows of all queries, one key, one value; if every head has its own key and value, those head by head."""
    if not config.multi_query:
        return _by_head(config)
    width = config.hidden_size
    size = width // config.num_attention_heads
    return {"q": slice(0, width), "k": slice(width, width + size), "v": slice(width + size, width + 2 * size)}


def _by_head(config: Any) -> dict[str, Rows]:
    """Return the rows by head: its queries, keys and values."""
    return _by_group(config, config.num_attention_heads)


def _by_group(config: Any, groups: int) -> dict[str, Rows]:
    """Return the rows by group: the queries of its heads, then their shared keys and values."""
    heads = config.num_attention_heads
    size = config.hidden_size // heads
    rows = torch.arange((heads + 2 * groups) * size).view(groups, heads // groups + 2, size)
    return {"q": rows[:, :-2].flatten(), "k": rows[:, -2].flatten(), "v": rows[:, -1].flatten()}


def _by_quarter(config: Any) -> dict[str, Rows]:
    """Return the rows by quarter of the heads: queries, values, keys."""
    rows = torch.arange(3 * config.hidden_size).view(4, 3, -1)
    return {"q": rows[:, 0].flatten(), "v": rows[:, 1].flatten(), "k": rows[:, 2].flatten()}


def _with_gates(config: Any) -> dict[str, Rows]:
    """Return the rows by head: its queries, then its output gates."""
    rows = torch.arange(2 * config.num_attention_heads * config.head_dim).view(-1, 2, config.head_dim)
    return {"q": rows[:, 0].flatten(), "g": rows[:, 1].flatten()}


def _falcon(config: Any) -> dict[str, Rows]:
    """Return the rows by group in the newer Falcon architecture; in the older one, heads share one key and value or have their own."""
    if config.new_decoder_architecture:
        return _by_group(config, config.num_kv_heads)
    return _by_group(config, 1) if config.multi_query else _by_head(config)


Activation = Callable[[nn.Module], Callable[[Tensor], Tensor]]


@dataclass(frozen=True, slots=True)
class FFNNames:
    """Names of an FFN's modules inside the layer's module ``where`` ("" for the layer itself). Equal names denote halves of one module.

    activation: name of the activation module or, if no single module computes it, a function that returns it for an FFN.
    """

    up: str
    down: str
    activation: str | Activation
    gate: str | None = None
    where: str = "mlp"


@dataclass(frozen=True, slots=True)
class AttentionNames:
    """Names of an attention's modules inside the module ``where``, by projection; layers may lack some or all of them.

    fused: row ranges of projections that are fused into one module.
    """

    where: str
    projections: Mapping[str, str]
    fused: Callable[[Any], Mapping[str, Rows]] | None = None


@dataclass(frozen=True, slots=True)
class Family:
    """Names of a model family.

    experts: the module with all experts of a layer; shared: an FFN that receives every token in addition to the experts. A layer without
    experts has the ``ffn``. multiplied, divided, bounded: config settings that scale, divide or soft-cap the logits, for families that have
    them (`exit_feedback.model_head`).
    """

    ffn: FFNNames
    attention: AttentionNames
    experts: str | None = None
    shared: FFNNames | None = None
    multiplied: str | None = None
    divided: str | None = None
    bounded: str | None = None


def _separate(where: str = "self_attn", output: str = "o_proj") -> AttentionNames:
    return AttentionNames(where, {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": output})


def _fused(where: str, name: str, output: str, rows: Callable[[Any], Mapping[str, Rows]]) -> AttentionNames:
    return AttentionNames(where, {"q": name, "k": name, "v": name, "o": output}, rows)


def _scaled_gate(ffn: Any) -> Callable[[Tensor], Tensor]:
    def activation(gate: Tensor) -> Tensor:
        return cast(Tensor, ffn.act_fn(gate * ffn.gate_multiplier))

    return activation


_GATED = FFNNames("up_proj", "down_proj", "act_fn", "gate_proj")
_PLAIN = FFNNames("up_proj", "down_proj", "act_fn")
_HALVES = FFNNames("gate_up_proj", "down_proj", "activation_fn", "gate_up_proj")
_DENSE = FFNNames("dense_h_to_4h", "dense_4h_to_h", "act")
_IN_LAYER = FFNNames("fc1", "fc2", "activation_fn", where="")
_SHARED_MLP = FFNNames("input_linear", "output_linear", "activation", "input_linear", where="shared_mlp")
_NUMBERED = FFNNames("w3", "w2", lambda _: silu, "w1", where="feed_forward")
# Low-rank queries and keys/values: q_a and kv_a are the down-projections, q_b and kv_b the up-projections.
_LATENT = AttentionNames(
    "self_attn",
    {"q": "q_proj", "q_a": "q_a_proj", "q_b": "q_b_proj", "kv_a": "kv_a_proj_with_mqa", "kv_b": "kv_b_proj", "o": "o_proj"},
)
_GATED_ATTENTION = AttentionNames("self_attn", {"q": "q_proj", "g": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj"}, _with_gates)
_LLAMA = Family(_GATED, _separate())
_GEMMA = replace(_LLAMA, bounded="final_logit_softcapping")
_GRANITE = replace(_LLAMA, divided="logits_scaling")
_COHERE = replace(_LLAMA, multiplied="logit_scale")
_EXPERTS = replace(_LLAMA, experts="mlp.experts")
_SHARED_EXPERT = replace(_EXPERTS, shared=replace(_GATED, where="mlp.shared_expert"))
_SHARED_EXPERTS = replace(_EXPERTS, shared=replace(_GATED, where="mlp.shared_experts"))
_LFM2 = Family(_NUMBERED, _separate(output="out_proj"))
_GRANITE_SHARED = replace(_GRANITE, experts="block_sparse_moe.experts", shared=_SHARED_MLP)

FAMILIES: dict[str, Family] = {
    **dict.fromkeys(("llama", "mistral", "ministral", "ministral3", "qwen2", "qwen3", "gemma", "olmo", "olmo2", "olmo3"), _LLAMA),
    **dict.fromkeys(("smollm3", "stablelm", "exaone4", "ernie4_5", "seed_oss", "hunyuan_v1_dense", "helium", "cwm"), _LLAMA),
    **dict.fromkeys(("diffllama", "olmo_hybrid"), _LLAMA),
    **dict.fromkeys(("gemma2", "gemma3_text", "vaultgemma"), _GEMMA),
    **dict.fromkeys(("cohere", "cohere2"), _COHERE),
    "hyperclovax": replace(_LLAMA, multiplied="logits_scaling"),
    "granite": _GRANITE,
    "qwen3_5_text": replace(_LLAMA, attention=_GATED_ATTENTION),
    **dict.fromkeys(("nemotron", "arcee", "jais2", "apertus"), Family(_PLAIN, _separate())),
    **dict.fromkeys(("glm", "glm4"), Family(_HALVES, _separate())),
    "phi3": Family(_HALVES, _fused("self_attn", "qkv_proj", "o_proj", _grouped)),
    "phi": Family(FFNNames("fc1", "fc2", "activation_fn"), _separate(output="dense")),
    "nanochat": Family(FFNNames("fc1", "fc2", "activation_fn"), _separate(), bounded="final_logit_softcapping"),
    "starcoder2": Family(FFNNames("c_fc", "c_proj", "act"), _separate()),
    "gpt2": Family(FFNNames("c_fc", "c_proj", "act"), _fused("attn", "c_attn", "c_proj", _thirds)),
    "gpt_bigcode": Family(FFNNames("c_fc", "c_proj", "act"), _fused("attn", "c_attn", "c_proj", _one_key)),
    "gpt_neo": Family(FFNNames("c_fc", "c_proj", "act"), _separate("attn.attention", "out_proj")),
    "gptj": Family(FFNNames("fc_in", "fc_out", "act"), _separate("attn", "out_proj")),
    "codegen": Family(FFNNames("fc_in", "fc_out", "act"), _fused("attn", "qkv_proj", "out_proj", _by_quarter)),
    "gpt_neox": Family(_DENSE, _fused("attention", "query_key_value", "dense", _by_head)),
    "persimmon": Family(_DENSE, _fused("self_attn", "query_key_value", "dense", _by_head)),
    **dict.fromkeys(("opt", "biogpt"), Family(_IN_LAYER, _separate(output="out_proj"))),
    "bloom": Family(
        FFNNames("dense_h_to_4h", "dense_4h_to_h", "gelu_impl"), _fused("self_attention", "query_key_value", "dense", _by_head)
    ),
    "falcon": Family(_DENSE, _fused("self_attention", "query_key_value", "dense", _falcon)),
    "falcon_h1": Family(
        FFNNames("up_proj", "down_proj", _scaled_gate, "gate_proj", where="feed_forward"), _separate(), multiplied="lm_head_multiplier"
    ),
    "bamba": replace(_LLAMA, ffn=replace(_GATED, where="feed_forward")),
    "mpt": Family(FFNNames("up_proj", "down_proj", "act", where="ffn"), _fused("attn", "Wqkv", "out_proj", _thirds)),
    "lfm2": _LFM2,
    "lfm2_moe": replace(_LFM2, experts="feed_forward.experts"),
    "youtu": replace(_LLAMA, attention=_LATENT),
    **dict.fromkeys(("mixtral", "qwen3_moe", "gpt_oss", "olmoe", "flex_olmo", "phimoe", "minimax_m2", "mellum"), _EXPERTS),
    "qwen2_moe": _SHARED_EXPERT,
    **dict.fromkeys(("qwen3_next", "qwen3_5_moe_text"), replace(_SHARED_EXPERT, attention=_GATED_ATTENTION)),
    **dict.fromkeys(("glm4_moe", "dots1", "ernie4_5_moe", "exaone_moe", "solar_open"), _SHARED_EXPERTS),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "glm4_moe_lite"), replace(_SHARED_EXPERTS, attention=_LATENT)),
    "cohere2_moe": replace(_SHARED_EXPERTS, multiplied="logit_scale"),
    "granitemoe": replace(_GRANITE, experts="block_sparse_moe.experts"),
    "granitemoeshared": _GRANITE_SHARED,
    "granitemoehybrid": replace(_GRANITE_SHARED, ffn=_SHARED_MLP),
}
