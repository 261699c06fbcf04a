"""Classifies tensors by name: the role in the model, the layer, and whether it is a trained parameter.

Names are those the model families give their modules in transformers, those of a few original releases, and those of GGUF. Names are
split at dots: ``model.layers.3.self_attn.q_norm.weight`` has the modules model, layers, 3, self_attn, q_norm
and the leaf weight.
"""

import re

ROLES = ("embedding", "attention", "mlp", "expert", "router", "norm", "head", "other")

# Names are judged by so many characters at their end: real ones are shorter, and hostile ones are long and many.
_JUDGED = 128
# Leaves that only distinguish the tensors of one module.
_LEAF = re.compile(
    r"(weights?|bias|scales?|gamma|beta|running_(mean|var)|num_batches_tracked|weight_(packed|scale(_inv|_2)?|global_scale)"
    r"|input_(global_)?scale|scale_(weight|input)|qscale_weight)"
)
# Modules with which programs wrap others.
_WRAPPERS = frozenset({"_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "base_layer"})
# What modules are, in a path that begins and ends with a dot.
_NORM = re.compile(r"norm(?!al)|lay_?rnorm|[._]ln[_\d.]|\.bn\d*\.")
_ROUTER = re.compile(r"[._]router[._]|\.(shared_expert_gate|e_score_correction_bias|expert_bias|ffn_gate_inp(_shexp)?|exp_probs_b)\.")
_EXPERT = re.compile(r"[._]experts?(_\d+)?\.|\.((block_sparse_)?moe|switch_mlp|ffn_\w+exps)\.")
_SHARED_EXPERT = re.compile(r"\.shared_(experts?|mlp)\.")
_HEAD = re.compile(
    r"[._]heads?\.|\.(lm_head_[^.]*|embed_out|output_layer|score|classifier|qa_outputs|cls|final_logits_bias|output_projection"
    r"|pre_classifier)\."
)
_MLP = re.compile(r"mlp|ffn|feed_?forward|densereludense")
# Role -> what a module of it is named.
_PARTS = {
    "attention": re.compile(r"attn|attention|^mha$"),
    "mlp": _MLP,
    "embedding": re.compile(r"^(?!.*rotary)(.*embed|.*embd$|(wte|wpe|emb|tok_emb|pos_emb|cls_token|mask_token|token_types)$)"),
}
_PROJECTIONS = {
    "attention": re.compile(r"^([qkvo]|qkv|[qkv]_[ab])_(proj|lin)$|^(wqkv|w[qkvo]|query|key|value|query_key_value|c_attn|qkv)$"),
    "mlp": re.compile(
        r"^(fc\d|fc_(in|out)|c_fc|(gate|up|down|gate_up)_proj|dense_h_to_4h|dense_4h_to_h|intermediate|w[123]|wi(_\d)?|lin(ear)?[12])$"
    ),
}
_BLOCKS = r"\.(?:h|blk|(?:\w*_)?(?:layers?|blocks?)|resblocks)\."
_BLOCK = re.compile(_BLOCKS)
_LAYER = re.compile(_BLOCKS + r"([0-9]{1,6})\.", re.IGNORECASE)

_BUFFERS = re.compile(
    r"masked_bias|(original_)?inv_freq|running_(mean|var)|num_batches_tracked|position_ids|token_type_ids|final_logits_bias"
    r"|relative_position_index|relative_coords_table|(cos|sin)_cached|freqs_cis|(causal|attn)_mask|_float_tensor|embed_scale|inv_timescales?"
    r"|freqs_(cos|sin)|scaled_fp8"
)
_ROTARY_BUFFERS = re.compile(r"(.*\.)?\w*(rope|rotary)\w*\.(freqs|periods)")
_GGUF_BUFFERS = re.compile(r"rope_(freqs|factors_(long|short))")
# Integer tensors that hold quantized weights or their scales, and are not buffers.
_QUANTIZED = re.compile(
    r"(^|\.)(qweight|scb|codes|codebooks?|w_q)$|(^|[._])(weight|weight_packed|weight_scale|blocks|scales)$|(gate|up|down|gate_up)_proj$"
)
INTEGER_DTYPES = frozenset({"BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64"})


def role(name: str) -> str:
    """Return the role of a tensor in the model, one of `ROLES`.

    The innermost module decides, with these exceptions: a norm is a norm in any module; the gate of a mixture of experts is its router;
    experts have a role of their own, since only the tokens routed to an expert train it, while a shared expert, which processes every
    token, counts as mlp; every tensor of an output head is head.
    """
    name = name[-_JUDGED:].lower()
    modules = [module for module in name.split(".") if module not in _WRAPPERS] or [name]
    if len(modules) > 1 and _LEAF.fullmatch(modules[-1]):
        modules.pop()
    path = f".{'.'.join(modules)}."
    if _NORM.search(f".{modules[-1]}."):
        return "norm"
    if _ROUTER.search(path) or ("gate" in modules and (_MLP.search(path) or _EXPERT.search(path))):
        return "router"
    if _SHARED_EXPERT.search(path):
        return "mlp"
    if _EXPERT.search(path):
        return "expert"
    if _HEAD.search(path) or modules == ["output"]:
        return "head"
    if found := _innermost(modules, _PARTS) or _innermost(modules, _PROJECTIONS):
        return found
    if modules[-1] == "shared" and len(modules) < 3:  # T5 and BART share one embedding, at the top level
        return "embedding"
    # BERT and ViT call the second half of an MLP layer.N.output.
    return "mlp" if len(modules) > 2 and "output" in modules and _BLOCK.search(path) else "other"


def _innermost(modules: list[str], roles: dict[str, re.Pattern[str]]) -> str | None:
    return next((found for module in reversed(modules) for found, pattern in roles.items() if pattern.search(module)), None)


def layer(name: str) -> int | None:
    """Return the number of the outermost block a tensor belongs to; None outside blocks. Encoder and decoder both count from 0."""
    found = _LAYER.search(f".{name[-_JUDGED:]}.")
    return int(found[1]) if found else None


def is_buffer(name: str, shape: tuple[int, ...], dtype: str) -> bool:
    """Return whether a stored tensor is not a trained parameter: masks, rotary frequencies, running statistics, positions, markers.

    Decided by name; by shape for the causal masks that GPT-2, GPT-J and GPT-NeoX store as attention ``bias`` of shape (1, 1, n, n); and by
    dtype, since integers and booleans are not trained, unless they hold a quantized weight, by name or as a matrix of int8.
    """
    lower = name[-_JUDGED:].lower()
    modules = lower.split(".")
    leaf = modules[-1]
    if _BUFFERS.fullmatch(leaf) or _ROTARY_BUFFERS.fullmatch(lower) or _GGUF_BUFFERS.fullmatch(lower.removesuffix(".weight")):
        return True
    if leaf == "bias" and len(shape) == 4 and shape[:2] == (1, 1) and shape[2] == shape[3] and len(modules) > 1:
        return bool(_PARTS["attention"].search(modules[-2]))
    if leaf == "weights" and len(modules) > 1 and modules[-2] == "embed_positions":
        return True  # the sinusoids of M2M100 and similar models; learned positions are called weight
    matrix_of_int8 = dtype == "I8" and len(shape) > 1 and min(shape[-2:]) > 1
    return dtype in INTEGER_DTYPES and not matrix_of_int8 and not _QUANTIZED.search(lower)
