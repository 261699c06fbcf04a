"""Defines a tiny random model of every family, with explicit positions of the weights of its neurons.

Each has 2 layers, hidden width 32 and FFNs of 48 neurons (BLOOM: four times the hidden width). Weights are found by name and sliced with
plain indexing, never with the code under test.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

VOCABULARY = 67
HIDDEN, WIDTH, LAYERS, HEADS, KEY_HEADS, HEAD = 32, 48, 2, 4, 2, 8

COMMON = {
    "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_HEADS, "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
}  # fmt: skip
OLDER = {"n_embd": HIDDEN, "n_inner": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 64}
GROUPS = {
    "n_routed_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": WIDTH, "n_group": 1, "topk_group": 1,
    "n_shared_experts": 1, "num_shared_experts": 1, "first_k_dense_replace": 0, "mlp_layer_types": ["sparse"] * LAYERS, "head_dim": HEAD,
}  # fmt: skip
SCALED = {"logits_scaling": 3.0, "embedding_multiplier": 2.0, "residual_multiplier": 0.5, "attention_multiplier": 0.4}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": WIDTH, "decoder_sparse_step": 1}

Cut = Callable[[Tensor], Tensor]  # weight -> the rows (units, width) of one block


@dataclass(frozen=True)
class Architecture:
    """A family: its configuration, and the blocks of a layer: the name of the weight, and the function that slices the block from it.

    experts: blocks of its experts, from the weight of a single expert. instead: blocks of the layers without experts. A layer without a
    weight has no block of it.
    """

    model_type: str
    blocks: dict[str, tuple[str, Cut]]
    settings: dict[str, Any] = field(default_factory=dict)
    layers: str = "model.layers"
    experts: dict[str, tuple[str, Cut]] = field(default_factory=dict)
    instead: dict[str, tuple[str, Cut]] = field(default_factory=dict)


def same(weight: Tensor) -> Tensor:
    return weight


def columns(weight: Tensor) -> Tensor:
    return weight.T


def part(index: int, of: int) -> Cut:
    return lambda weight: weight.chunk(of)[index]


def gated(where: str = "mlp.") -> dict[str, tuple[str, Cut]]:
    return {"gate": (f"{where}gate_proj", same), "up": (f"{where}up_proj", same), "down": (f"{where}down_proj", columns)}


def plain(up: str, down: str) -> dict[str, tuple[str, Cut]]:
    return {"up": (up, same), "down": (down, columns)}


def llama(model_type: str, **settings: Any) -> Architecture:
    return Architecture(model_type, gated(), settings)


PLAIN = plain("mlp.up_proj", "mlp.down_proj")
DENSE = plain("mlp.dense_h_to_4h", "mlp.dense_4h_to_h")


def halves(where: str = "mlp.experts.", both: str = "gate_up_proj", down: str = "down_proj") -> dict[str, tuple[str, Cut]]:
    return {"gate": (where + both, part(0, 2)), "up": (where + both, part(1, 2)), "down": (where + down, columns)}


HALVES = halves()
TURNS: dict[str, tuple[str, Cut]] = {
    "gate": ("mlp.experts.gate_up_proj", lambda weight: weight.T[0::2]),
    "up": ("mlp.experts.gate_up_proj", lambda weight: weight.T[1::2]),
    "down": ("mlp.experts.down_proj", same),
}
NUMBERED: dict[str, tuple[str, Cut]] = {
    "gate": ("feed_forward.w1", same), "up": ("feed_forward.w3", same), "down": ("feed_forward.w2", columns)
}  # fmt: skip
LATENT_SIZES = {
    "q_lora_rank": 12, "kv_lora_rank": 10, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 8, "head_dim": 4,
    "num_key_value_heads": HEADS,
}  # fmt: skip
LINEAR_SIZES = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "head_dim": HEAD,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
STATE_SIZES = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 4}
LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
SHARED, OF_CONV, INNER = gated("mlp.shared_experts."), plain("mlp.c_fc", "mlp.c_proj"), plain("mlp.fc_in", "mlp.fc_out")
SHARED_EXPERT, WITH_SHARED = gated("mlp.shared_expert."), {**EXPERTS, "shared_expert_intermediate_size": 40}
LINEAR, BLOCK_SPARSE = halves("shared_mlp.", "input_linear", "output_linear"), halves("block_sparse_moe.experts.")
SEEN = {
    "text_config": {**COMMON, "head_dim": HEAD, "sliding_window": 5, "query_pre_attn_scalar": HEAD},
    "vision_config": {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
}
ALIBI = {"new_decoder_architecture": False, "multi_query": False, "alibi": True, "parallel_attn": False, "ffn_hidden_size": WIDTH}
OPT = {"ffn_dim": WIDTH, "word_embed_proj_dim": HIDDEN}
SCALED_LOCAL = {**SCALED, **LOCAL, "shared_intermediate_size": 40}
STATES = {**SCALED, **STATE_SIZES, "shared_intermediate_size": 40, "layer_types": ["mamba", "attention"]}
SCALED_MLP = {"mamba_d_ssm": 64, "lm_head_multiplier": 0.5, "mlp_multipliers": [0.7, 0.8], "key_multiplier": 0.6}
ERNIE = {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": WIDTH, "moe_layer_start_index": 0, "moe_num_shared_experts": 1}
GLOBAL_AND_LOCAL = {"attention_types": [[["global", "local"], 1]], "window_size": 5}
FALCON = {"new_decoder_architecture": True, "num_kv_heads": KEY_HEADS, "ffn_hidden_size": WIDTH}
ARCHITECTURES = {
    **{name: llama(name) for name in ("llama", "qwen2", "olmo", "olmo2", "smollm3", "diffllama")},
    **{name: llama(name, head_dim=HEAD) for name in ("qwen3", "gemma", "ministral3", "ernie4_5", "seed_oss", "hunyuan_v1_dense", "helium")},
    **{name: llama(name, sliding_window=5) for name in ("mistral", "olmo3", "exaone4")},
    **{name: llama(name, sliding_window=5, head_dim=HEAD) for name in ("ministral", "cwm")},
    "gemma2": llama("gemma2", head_dim=HEAD, sliding_window=5, query_pre_attn_scalar=HEAD, final_logit_softcapping=3.0),
    "gemma3_text": llama("gemma3_text", head_dim=HEAD, sliding_window=5, query_pre_attn_scalar=HEAD),
    "gemma3, text of a model that also sees": Architecture("gemma3", gated(), SEEN, "model.language_model.layers"),
    "vaultgemma": llama("vaultgemma", head_dim=HEAD, sliding_window=5, query_pre_attn_scalar=HEAD, final_logit_softcapping=3.0),
    "stablelm": llama("stablelm", use_parallel_residual=True, use_qkv_bias=True),
    "cohere": llama("cohere", logit_scale=0.25),
    "cohere, norms of queries": llama("cohere", logit_scale=2.0, use_qk_norm=True),
    "cohere2": llama("cohere2", logit_scale=0.25, sliding_window=5),
    "granite": llama("granite", **SCALED),
    "hyperclovax": llama("hyperclovax", **SCALED),
    **{name: Architecture(name, PLAIN, {"head_dim": HEAD}) for name in ("nemotron", "arcee", "jais2")},
    "apertus": Architecture("apertus", PLAIN),
    "glm": Architecture("glm", halves("mlp."), {"head_dim": HEAD}),
    "glm4": Architecture("glm4", halves("mlp."), {"head_dim": HEAD}),
    "phi3": Architecture("phi3", halves("mlp.")),
    "phi": Architecture("phi", plain("mlp.fc1", "mlp.fc2")),
    "starcoder2": Architecture("starcoder2", OF_CONV, {"sliding_window": 5}),
    "gpt2": Architecture("gpt2", {"up": ("mlp.c_fc", columns), "down": ("mlp.c_proj", same)}, OLDER, "transformer.h"),
    "gpt_bigcode": Architecture("gpt_bigcode", OF_CONV, OLDER, "transformer.h"),
    "gpt_bigcode, a key for each head": Architecture("gpt_bigcode", OF_CONV, {**OLDER, "multi_query": False}, "transformer.h"),
    "mpt": Architecture(
        "mpt", plain("ffn.up_proj", "ffn.down_proj"), {"d_model": HIDDEN, "n_heads": HEADS, "n_layers": LAYERS}, "transformer.blocks"
    ),
    "gpt_neo": Architecture("gpt_neo", OF_CONV, {"num_layers": LAYERS, "num_heads": HEADS, **GLOBAL_AND_LOCAL}, "transformer.h"),
    "gptj": Architecture("gptj", INNER, {**OLDER, "rotary_dim": 4}, "transformer.h"),
    "codegen": Architecture("codegen", INNER, {**OLDER, "rotary_dim": 4}, "transformer.h"),
    "gpt_neox": Architecture("gpt_neox", DENSE, {"rotary_pct": 0.5}, "gpt_neox.layers"),
    "opt": Architecture("opt", plain("fc1", "fc2"), {**OPT, "word_embed_proj_dim": 16}, "model.decoder.layers"),
    "opt, norms after": Architecture("opt", plain("fc1", "fc2"), {**OPT, "do_layer_norm_before": False}, "model.decoder.layers"),
    "bloom": Architecture("bloom", DENSE, {"n_layer": LAYERS, "n_head": HEADS}, "transformer.h"),
    "falcon": Architecture("falcon", DENSE, FALCON, "transformer.h"),
    "falcon, one key": Architecture("falcon", DENSE, {**FALCON, "new_decoder_architecture": False, "multi_query": True}, "transformer.h"),
    "falcon, alibi": Architecture("falcon", DENSE, ALIBI, "transformer.h"),
    "mixtral": Architecture("mixtral", {}, {"num_local_experts": 4}, experts=HALVES),
    "qwen2_moe": Architecture("qwen2_moe", SHARED_EXPERT, WITH_SHARED, experts=HALVES),
    **{name: Architecture(name, {}, {**EXPERTS, "head_dim": HEAD}, experts=HALVES) for name in ("qwen3_moe", "mellum")},
    **{name: Architecture(name, {}, EXPERTS, experts=HALVES) for name in ("olmoe", "flex_olmo")},
    "phimoe": Architecture("phimoe", {}, LOCAL, experts=HALVES),
    "minimax_m2": Architecture("minimax_m2", {}, {**LOCAL, "head_dim": HEAD}, experts=HALVES),
    **{name: Architecture(name, SHARED, GROUPS, experts=HALVES) for name in ("glm4_moe", "dots1", "exaone_moe", "solar_open")},
    "ernie4_5_moe": Architecture("ernie4_5_moe", SHARED, ERNIE, experts=HALVES),
    "granitemoe": Architecture("granitemoe", {}, {**SCALED, **LOCAL}, experts=BLOCK_SPARSE),
    "granitemoeshared": Architecture("granitemoeshared", LINEAR, SCALED_LOCAL, experts=BLOCK_SPARSE),
    "qwen3_next": Architecture("qwen3_next", SHARED_EXPERT, {**WITH_SHARED, **LINEAR_SIZES}, experts=HALVES),
    "qwen3_5_text": Architecture("qwen3_5_text", gated(), LINEAR_SIZES),
    "qwen3_5_moe_text": Architecture("qwen3_5_moe_text", SHARED_EXPERT, {**WITH_SHARED, **LINEAR_SIZES}, experts=HALVES),
    "lfm2": Architecture("lfm2", NUMBERED, {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}),
    "lfm2_moe": Architecture(
        "lfm2_moe", NUMBERED, {**EXPERTS, "layer_types": ["full_attention", "conv"], "num_dense_layers": 1},
        experts=halves("feed_forward.experts."),
    ),
    "deepseek_v3": Architecture(
        "deepseek_v3", SHARED, {**GROUPS, **LATENT_SIZES, "first_k_dense_replace": 1}, experts=HALVES, instead=gated()
    ),
    "deepseek_v2": Architecture("deepseek_v2", SHARED, {**GROUPS, **LATENT_SIZES, "q_lora_rank": None}, experts=HALVES),
    "glm4_moe_lite": Architecture("glm4_moe_lite", SHARED, {**GROUPS, **LATENT_SIZES}, experts=HALVES),
    "youtu": Architecture("youtu", gated(), LATENT_SIZES),
    "cohere2_moe": Architecture("cohere2_moe", SHARED, {**GROUPS, "logit_scale": 0.25, "sliding_window": 5}, experts=HALVES),
    "granitemoehybrid": Architecture("granitemoehybrid", LINEAR, {**STATES, **LOCAL}, experts=BLOCK_SPARSE),
    "granitemoehybrid, dense": Architecture("granitemoehybrid", LINEAR, {**STATES, "num_local_experts": 0}),
    "falcon_h1": Architecture("falcon_h1", gated("feed_forward."), {**STATE_SIZES, **SCALED_MLP}),
    "bamba": Architecture("bamba", gated("feed_forward."), {**STATE_SIZES, "attn_layer_indices": [1]}),
    "olmo_hybrid": Architecture("olmo_hybrid", gated(), LINEAR_SIZES),
    "nanochat": Architecture("nanochat", plain("mlp.fc1", "mlp.fc2"), {"final_logit_softcapping": 3.0}),
    "persimmon": Architecture("persimmon", DENSE),
    "biogpt": Architecture("biogpt", plain("fc1", "fc2"), layers="biogpt.layers"),
    "gpt_oss": Architecture("gpt_oss", {}, {**LOCAL, "head_dim": HEAD, "sliding_window": 5}, experts=TURNS),
}  # fmt: skip

# An architecture of each structure: gated, tied with caps, fused gate and up, transposed weights, position embeddings, queries, keys and
# values by head and by group of heads, low-rank attention with shared and dense layers, experts in both orders, gated linear attention,
# state spaces, a multimodal model.
STRUCTURES = (
    "llama", "gemma2", "phi3", "gpt2", "opt", "bloom", "falcon", "deepseek_v3", "mixtral", "gpt_oss", "qwen3_next", "falcon_h1",
    "gemma3, text of a model that also sees",
)  # fmt: skip


def every_architecture(some: Sequence[str] = STRUCTURES) -> list[Any]:
    """Return all names of `ARCHITECTURES` as parameters of a test; those not in ``some`` only run in the exhaustive suite."""
    return [pytest.param(name, marks=() if name in some else pytest.mark.exhaustive) for name in ARCHITECTURES]


def build(architecture: Architecture, attention: str = "eager", dtype: torch.dtype = torch.float64, **settings: Any) -> nn.Module:
    """Build the model in evaluation mode, with frozen weights of a scale at which every part matters."""
    from transformers import AutoConfig, AutoModelForCausalLM

    models: Any = AutoModelForCausalLM

    common = {} if "text_config" in architecture.settings else COMMON
    config = AutoConfig.for_model(architecture.model_type, **{**common, **architecture.settings, **settings})
    torch.manual_seed(0)
    model: nn.Module = models.from_config(config, attn_implementation=attention, experts_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.2 if parameter.dim() > 1 else 0.1))
    return model.to(dtype).eval().requires_grad_(False)


def supports_sdpa(model: nn.Module) -> bool:
    return bool(getattr(type(model), "_supports_sdpa", False))


def blocks_of(
    architecture: Architecture, model: nn.Module, take: Callable[[Tensor], Tensor | None]
) -> dict[tuple[int, int | None, str], Tensor]:
    """Return (layer, expert, block) -> (units, width), sliced from ``take`` of each weight; zero where ``take`` returns None."""
    found: dict[tuple[int, int | None, str], Tensor] = {}
    weights = dict(model.named_parameters())
    with warnings.catch_warnings():
        for layer in range(LAYERS):
            at = f"{architecture.layers}.{layer}."
            for block, (name, cut) in (*architecture.blocks.items(), *architecture.instead.items()):
                if f"{at}{name}.weight" in weights:
                    found[layer, None, block] = cut(_taken(weights[f"{at}{name}.weight"], take))
            for block, (name, cut) in architecture.experts.items():
                for expert, weight in enumerate(_taken(weights[at + name], take) if at + name in weights else ()):
                    found[layer, expert, block] = cut(weight)
    return found


def _taken(weight: Tensor, take: Callable[[Tensor], Tensor | None]) -> Tensor:
    taken = take(weight)
    return torch.zeros_like(weight) if taken is None else taken
