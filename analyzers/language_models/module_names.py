"""Names the parts of the layers of each model family.

A decoder layer has an FFN and an attention module. Gate and up may be halves of one module. Experts are not modules but slices of 3-D
parameters. Some families have layers with a convolution, a state-space model or linear attention in place of attention.
"""

from collections.abc import Callable
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
class Family:
    """Names of a model family.

    attention: the attention module of a layer, which some layers lack. experts: the module with all experts of a layer; shared: an FFN that
    receives every token in addition to the experts. A layer without experts has the ``ffn``. multiplied, divided, bounded: config settings
    that scale, divide or soft-cap the logits, for families that have them (`exit.model_head`).
    """

    ffn: FFNNames
    attention: str = "self_attn"
    experts: str | None = None
    shared: FFNNames | None = None
    multiplied: str | None = None
    divided: str | None = None
    bounded: str | None = None


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
_LLAMA = Family(_GATED)
_GEMMA = replace(_LLAMA, bounded="final_logit_softcapping")
_GRANITE = replace(_LLAMA, divided="logits_scaling")
_COHERE = replace(_LLAMA, multiplied="logit_scale")
_EXPERTS = replace(_LLAMA, experts="mlp.experts")
_SHARED_EXPERT = replace(_EXPERTS, shared=replace(_GATED, where="mlp.shared_expert"))
_SHARED_EXPERTS = replace(_EXPERTS, shared=replace(_GATED, where="mlp.shared_experts"))
_LFM2 = Family(_NUMBERED)
_GRANITE_SHARED = replace(_GRANITE, experts="block_sparse_moe.experts", shared=_SHARED_MLP)

FAMILIES: dict[str, Family] = {
    **dict.fromkeys(("llama", "mistral", "ministral", "ministral3", "qwen2", "qwen3", "gemma", "olmo", "olmo2", "olmo3"), _LLAMA),
    **dict.fromkeys(("smollm3", "stablelm", "exaone4", "ernie4_5", "seed_oss", "hunyuan_v1_dense", "helium", "cwm"), _LLAMA),
    **dict.fromkeys(("diffllama", "olmo_hybrid", "qwen3_5_text", "youtu"), _LLAMA),
    **dict.fromkeys(("gemma2", "gemma3_text", "vaultgemma"), _GEMMA),
    **dict.fromkeys(("cohere", "cohere2"), _COHERE),
    "hyperclovax": replace(_LLAMA, multiplied="logits_scaling"),
    "granite": _GRANITE,
    **dict.fromkeys(("nemotron", "arcee", "jais2", "apertus"), Family(_PLAIN)),
    **dict.fromkeys(("glm", "glm4", "phi3"), Family(_HALVES)),
    "phi": Family(FFNNames("fc1", "fc2", "activation_fn")),
    "nanochat": Family(FFNNames("fc1", "fc2", "activation_fn"), bounded="final_logit_softcapping"),
    "starcoder2": Family(FFNNames("c_fc", "c_proj", "act")),
    **dict.fromkeys(("gpt2", "gpt_bigcode"), Family(FFNNames("c_fc", "c_proj", "act"), "attn")),
    "gpt_neo": Family(FFNNames("c_fc", "c_proj", "act"), "attn.attention"),
    **dict.fromkeys(("gptj", "codegen"), Family(FFNNames("fc_in", "fc_out", "act"), "attn")),
    "gpt_neox": Family(_DENSE, "attention"),
    "persimmon": Family(_DENSE),
    **dict.fromkeys(("opt", "biogpt"), Family(_IN_LAYER)),
    "bloom": Family(FFNNames("dense_h_to_4h", "dense_4h_to_h", "gelu_impl"), "self_attention"),
    "falcon": Family(_DENSE, "self_attention"),
    "falcon_h1": Family(FFNNames("up_proj", "down_proj", _scaled_gate, "gate_proj", where="feed_forward"), multiplied="lm_head_multiplier"),
    "bamba": replace(_LLAMA, ffn=replace(_GATED, where="feed_forward")),
    "mpt": Family(FFNNames("up_proj", "down_proj", "act", where="ffn"), "attn"),
    "lfm2": _LFM2,
    "lfm2_moe": replace(_LFM2, experts="feed_forward.experts"),
    **dict.fromkeys(("mixtral", "qwen3_moe", "gpt_oss", "olmoe", "flex_olmo", "phimoe", "minimax_m2", "mellum"), _EXPERTS),
    **dict.fromkeys(("qwen2_moe", "qwen3_next", "qwen3_5_moe_text"), _SHARED_EXPERT),
    **dict.fromkeys(
        ("glm4_moe", "dots1", "ernie4_5_moe", "exaone_moe", "solar_open", "deepseek_v2", "deepseek_v3", "glm4_moe_lite"), _SHARED_EXPERTS
    ),
    "cohere2_moe": replace(_SHARED_EXPERTS, multiplied="logit_scale"),
    "granitemoe": replace(_GRANITE, experts="block_sparse_moe.experts"),
    "granitemoeshared": _GRANITE_SHARED,
    "granitemoehybrid": replace(_GRANITE_SHARED, ffn=_SHARED_MLP),
}
