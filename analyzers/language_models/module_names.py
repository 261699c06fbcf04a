"""Names the linear maps in the layers of each model family.

A decoder layer has an FFN and an attention module, each containing linear maps. Gate and up may be halves of one module; query, key and
value that are computed in one product are one projection, "qkv". Experts are not modules but slices of 3-D parameters. Some families have
layers with a convolution, a state-space model or linear attention in place of attention: those layers have an FFN and no attention
projections to measure.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from torch import Tensor, nn
from torch.nn.functional import silu

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
    """Names of an attention's modules inside the module ``where``, by projection; layers may lack some or all of them."""

    where: str
    projections: Mapping[str, str]


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


def _fused(where: str, name: str, output: str) -> AttentionNames:
    return AttentionNames(where, {"qkv": name, "o": output})


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
    "qwen3_5_text": _LLAMA,
    **dict.fromkeys(("nemotron", "arcee", "jais2", "apertus"), Family(_PLAIN, _separate())),
    **dict.fromkeys(("glm", "glm4"), Family(_HALVES, _separate())),
    "phi3": Family(_HALVES, _fused("self_attn", "qkv_proj", "o_proj")),
    "phi": Family(FFNNames("fc1", "fc2", "activation_fn"), _separate(output="dense")),
    "nanochat": Family(FFNNames("fc1", "fc2", "activation_fn"), _separate(), bounded="final_logit_softcapping"),
    "starcoder2": Family(FFNNames("c_fc", "c_proj", "act"), _separate()),
    "gpt2": Family(FFNNames("c_fc", "c_proj", "act"), _fused("attn", "c_attn", "c_proj")),
    "gpt_bigcode": Family(FFNNames("c_fc", "c_proj", "act"), _fused("attn", "c_attn", "c_proj")),
    "gpt_neo": Family(FFNNames("c_fc", "c_proj", "act"), _separate("attn.attention", "out_proj")),
    "gptj": Family(FFNNames("fc_in", "fc_out", "act"), _separate("attn", "out_proj")),
    "codegen": Family(FFNNames("fc_in", "fc_out", "act"), _fused("attn", "qkv_proj", "out_proj")),
    "gpt_neox": Family(_DENSE, _fused("attention", "query_key_value", "dense")),
    "persimmon": Family(_DENSE, _fused("self_attn", "query_key_value", "dense")),
    **dict.fromkeys(("opt", "biogpt"), Family(_IN_LAYER, _separate(output="out_proj"))),
    "bloom": Family(FFNNames("dense_h_to_4h", "dense_4h_to_h", "gelu_impl"), _fused("self_attention", "query_key_value", "dense")),
    "falcon": Family(_DENSE, _fused("self_attention", "query_key_value", "dense")),
    "falcon_h1": Family(
        FFNNames("up_proj", "down_proj", _scaled_gate, "gate_proj", where="feed_forward"), _separate(), multiplied="lm_head_multiplier"
    ),
    "bamba": replace(_LLAMA, ffn=replace(_GATED, where="feed_forward")),
    "mpt": Family(FFNNames("up_proj", "down_proj", "act", where="ffn"), _fused("attn", "Wqkv", "out_proj")),
    "lfm2": _LFM2,
    "lfm2_moe": replace(_LFM2, experts="feed_forward.experts"),
    "youtu": replace(_LLAMA, attention=_LATENT),
    **dict.fromkeys(("mixtral", "qwen3_moe", "gpt_oss", "olmoe", "flex_olmo", "phimoe", "minimax_m2", "mellum"), _EXPERTS),
    "qwen2_moe": _SHARED_EXPERT,
    **dict.fromkeys(("qwen3_next", "qwen3_5_moe_text"), _SHARED_EXPERT),
    **dict.fromkeys(("glm4_moe", "dots1", "ernie4_5_moe", "exaone_moe", "solar_open"), _SHARED_EXPERTS),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "glm4_moe_lite"), replace(_SHARED_EXPERTS, attention=_LATENT)),
    "cohere2_moe": replace(_SHARED_EXPERTS, multiplied="logit_scale"),
    "granitemoe": replace(_GRANITE, experts="block_sparse_moe.experts"),
    "granitemoeshared": _GRANITE_SHARED,
    "granitemoehybrid": replace(_GRANITE_SHARED, ffn=_SHARED_MLP),
}
