"""Derives a tensor's site in a model from its name: one site for all names that programs give the same weights.

``model.layers.3.self_attn.qkv_proj.weight``, ``transformer.h.3.attn.c_attn.weight`` and ``blk.3.attn_qkv.weight`` are all the site
("layers.3.attn", ("q", "k", "v"), "weight"). A stack of experts has one site for all of them. Unknown names keep their modules.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from analyzers.checkpoints.tensor_names.prefixes import bare_name

QKV, GATE_UP = ("q", "k", "v"), ("gate", "up")

# Modules around the projections of a block, named differently by every program: they only distinguish the kinds of projections.
_SCOPES = {
    "cross": re.compile(r"cross_?(attn|attention)|encoder_attn|enc_?dec_?attention|crossattention"),
    "attn": re.compile(r"(self_?)?(attn|attention|mha|mixer)(_layer)?|selfattention|self"),
    "shared": re.compile(r"shared_(experts?|mlp)"),
    "mlp": re.compile(r"mlps?|ffn|feed_?forward|densereludense|block_sparse_moe|moe"),
}
_BLOCKS = re.compile(r"h|blk|blocks?|layers?|resblocks", re.IGNORECASE)
_NUMBER = re.compile(r"[0-9]{1,6}")
_EXPERTS = ("experts", "local_experts", "switch_mlp")
# The number of the expert behind the projection: gate_up_projs.3.weight, linear_fc1.weight3.
_NUMBERED_LAST = re.compile(r"(?<=experts\.)(\w+?)(?:s\.(?P<number>\d+)\.(?P<leaf>weight|bias)|\.(?P<leaf_>weight|bias)(?P<number_>\d+))$")


def _names(meanings: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return name -> parts, of a table of parts -> names."""
    return {name: tuple(parts.split()) for parts, names in meanings.items() for name in names.split()}


# Parts -> the last modules of a projection's name, in attention and in an MLP.
_IN_ATTENTION = _names({
    "q": "q_proj wq query q_lin to_q q q_linear linear_q",
    "k": "k_proj wk key k_lin to_k k k_linear linear_k",
    "v": "v_proj wv value v_lin to_v v v_linear linear_v",
    "o": "o_proj wo out_proj out_lin to_out.0 dense c_proj proj projection output.dense o linear_proj output",
    "q k v": "qkv_proj qkv wqkv w_pack query_key_value c_attn in_proj linear_qkv qkv_linear att_proj",
    "k v": "kv_proj kv key_value linear_kv to_kv",
})  # fmt: skip
_IN_MLP = _names({
    "gate": "gate_proj gate w1 wi_0",
    "up": "up_proj v1 up w3 wi_1 c_fc fc1 fc_in dense_h_to_4h lin1 linear1 linear_fc1 intermediate.dense wi",
    "down": "down_proj down w2 c_proj fc2 fc_out dense_4h_to_h lin2 linear2 linear_fc2 output.dense wo output_linear",
    "gate up": "gate_up_proj gate_up w13 gate_and_up input_linear w12",
})  # fmt: skip
# GGUF names, which denote module and projection at once: scope and parts -> names.
_GGUF = _names({
    "attn q": "attn_q", "attn k": "attn_k", "attn v": "attn_v", "attn o": "attn_output", "attn q k v": "attn_qkv",
    "- gate": "ffn_gate", "- up": "ffn_up", "- down": "ffn_down",
    "experts gate": "ffn_gate_exps", "experts up": "ffn_up_exps", "experts down": "ffn_down_exps", "experts gate up": "ffn_gate_up_exps",
    "shared gate": "ffn_gate_shexp", "shared up": "ffn_up_shexp", "shared down": "ffn_down_shexp",
})  # fmt: skip
# Other tensors with several names, outside and inside the blocks.
_OUTSIDE = _names({
    "embedding": "embed_tokens wte tok_embeddings token_embd embed_in word_embeddings embeddings.word_embeddings embedding.word_embeddings",
    "positions": "wpe position_embd embeddings.position_embeddings pos_embed",
    "patches": "patch_embed.proj embeddings.patch_embeddings.projection",
    "class_token": "cls_token embeddings.cls_token",
    "head": "lm_head output embed_out output_layer classifier head",
    "final_norm": "norm layernorm ln_f final_layer_norm final_layernorm output_norm norm_f decoder.final_layernorm",
    "embedding_norm": "word_embeddings_layernorm token_embd_norm",
})  # fmt: skip
_IN_BLOCK = _names({
    "attention_norm": "input_layernorm ln_1 attention_norm attn_norm ln1 norm1 norm_1 ln_mlp layernorm_before self_attn_layer_norm"
    " attn.linear_qkv.layer_norm",
    "parallel_norm": "ln_attn attn_norm_2",
    "mlp_norm": "post_attention_layernorm post_attention_norm ln_2 ffn_norm ln2 norm2 norm_2 layernorm_after pre_mlp_layernorm"
    " mlp.linear_fc1.layer_norm",
    "router": "mlp.gate mlp.router ffn_gate_inp",
    "router_correction": "mlp.gate.e_score_correction exp_probs_b",
    "q_norm": "attn.q_norm attn.q_layernorm attn_q_norm",
    "k_norm": "attn.k_norm attn.k_layernorm attn_k_norm",
    "sinks": "attn.sinks attn_sinks",
})  # fmt: skip


class Site(NamedTuple):
    """The position of a tensor in a model.

    path: of the module, in common names; parts: the parts of the fused matrix, or the one name of another tensor; leaf: weight, bias, ...;
    expert: its number; -1 for a stack of all; None outside experts; block: the path up to the number of the block, "" outside blocks.
    """

    path: str
    parts: tuple[str, ...]
    leaf: str
    expert: int | None
    block: str


def site(name: str) -> Site:
    """Return the site of a tensor, by its name."""
    folder, slash, inside = name.rpartition("/")
    modules = _NUMBERED_LAST.sub(_number_first, folder + slash + bare_name(inside)[0]).split(".")
    leaf = "weight"
    if len(modules) > 1 and modules[-1] in ("weight", "bias"):
        leaf = modules.pop()
    elif match := re.fullmatch(r"(.+)_(weight|bias)", modules[-1]):  # torch's MultiheadAttention, and biases of stacked experts
        modules[-1], leaf = match[1], match[2]
    block, inner = _block(modules)
    last = inner[-1].lower() if inner else ""
    if len(inner) == 1 and last in _GGUF:
        scope, *parts = _GGUF[last]
        path = block if scope == "-" else f"{block}.{scope}"
        return Site(path, tuple(parts), leaf, -1 if scope == "experts" else None, block)
    expert, inner = _expert(inner)
    scopes = {_scope(module) for module in inner[:-1]} | ({"experts"} if expert is not None else set())
    before = [module.lower() for module in inner[:-1] if not _scope(module)]
    table = _IN_ATTENTION if scopes & {"attn", "cross"} else _IN_MLP if scopes or block else {}
    module = f"{before[-1]}.{last}" if before and f"{before[-1]}.{last}" in table else last
    is_router = last == "gate" and expert is None
    if module in table and not is_router and (expert is not None or scopes != {"experts"}):
        scope = next((each for each in ("cross", "attn", "experts", "shared") if each in scopes), "")
        rest = before[:-1] if module != last else before
        return Site(".".join(filter(None, (block, *rest, scope))), table[module], leaf, expert, block)
    inside = ".".join(_scope(module) or module for module in inner)
    return Site(block, (_IN_BLOCK if block else _OUTSIDE).get(inside.lower(), (inside,)), leaf, expert, block)


def _block(modules: list[str]) -> tuple[str, list[str]]:
    """Return the path up to the outermost block, with ``layers`` as its container's name, and the modules inside it."""
    for at in range(len(modules) - 1):
        folder, slash, container = modules[at].rpartition("/")
        if _NUMBER.fullmatch(modules[at + 1]) and _BLOCKS.fullmatch(container):
            return ".".join((*modules[:at], f"{folder}{slash}layers", modules[at + 1])), modules[at + 2 :]
    return "", modules


def _number_first(match: re.Match[str]) -> str:
    """Return a projection with the number of its expert in front, as most programs name it."""
    return f"{match['number'] or match['number_']}.{match[1]}.{match['leaf'] or match['leaf_']}"


def _expert(modules: list[str]) -> tuple[int | None, list[str]]:
    """Return the number of the expert, -1 for a stack, None outside experts; and the modules without it."""
    for at, module in enumerate(modules[:-1]):
        if module in _EXPERTS and modules[at + 1] not in _EXPERTS:
            numbered = _NUMBER.fullmatch(modules[at + 1]) and at + 2 < len(modules)
            inner = modules[at + 2 :] if numbered else modules[at + 1 :]
            return (int(modules[at + 1]) if numbered else -1), [*modules[:at], *(inner if inner[0] != "mlp" else inner[1:])]
    if len(modules) > 1 and modules[-1] in ("input_linear", "output_linear") and _scope(modules[-2]) == "mlp":
        return -1, modules
    return None, modules


def _scope(module: str) -> str:
    return next((scope for scope, pattern in _SCOPES.items() if pattern.fullmatch(module.lower())), "")
