"""What a tensor is, by its name: its role in the model, its layer, and whether it is a trained parameter at all.

Names are those the model families give their modules in transformers, and those of a few original releases. A name is
taken apart at its dots: ``model.layers.3.self_attn.q_norm.weight`` has the modules model, layers, 3, self_attn, q_norm
and the leaf weight.
"""

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from analyzers.checkpoints.tensor import DTYPE_BITS

ROLES = ("embedding", "attention", "mlp", "expert", "router", "norm", "head", "other")

# A leaf that only says which of a module's tensors it is.
_LEAF = re.compile(r"(weights?|bias|scales?|gamma|beta|running_(mean|var)|num_batches_tracked|weight_scale(_inv)?|input_scale)")
_NORM = re.compile(r"norm(?!al)|lay_?rnorm|(^|_)ln(_|\d|$)|^bn\d*$")
_ROUTER = re.compile(r"(^|_)router(_|$)|^(shared_expert_gate|e_score_correction_bias|expert_bias)$")
_EXPERT = re.compile(r"(^|_)experts?(_\d+)?$|^(block_sparse_)?moe$")
_SHARED_EXPERT = re.compile(r"^shared_(experts?|mlp)$")
_HEAD = re.compile(
    r"(^|_)heads?$|^(lm_head_.*|embed_out|score|classifier|qa_outputs|cls|final_logits_bias|output_projection|pre_classifier)$"
)
_ATTENTION = re.compile(r"attn|attention|^mha$")
_MLP = re.compile(r"mlp|ffn|feed_?forward|densereludense")
_EMBEDDING = re.compile(r"embed|^(wte|wpe|emb|tok_emb|pos_emb|cls_token|mask_token)$")
_ATTENTION_LEAF = re.compile(r"^([qkvo]|qkv|[qkv]_[ab])_(proj|lin)$|^(wqkv|w[qkvo]|query|key|value|query_key_value|c_attn|qkv)$")
_MLP_LEAF = re.compile(
    r"^(fc\d|fc_(in|out)|c_fc|(gate|up|down|gate_up)_proj|dense_h_to_4h|dense_4h_to_h|intermediate|w[123]|wi(_\d)?|lin(ear)?[12])$"
)
_BLOCKS = re.compile(r"^(h|(\w*_)?(layers?|blocks?)|resblocks)$")
_LAYER_NUMBER = re.compile(r"[0-9]{1,6}")

_BUFFERS = re.compile(
    r"masked_bias|(original_)?inv_freq|running_(mean|var)|num_batches_tracked|position_ids|token_type_ids|final_logits_bias"
    r"|relative_position_index|relative_coords_table|(cos|sin)_cached|freqs_cis|(causal|attn)_mask|_float_tensor|embed_scale|inv_timescales?"
)
# Integer tensors that hold quantized weights, or what is needed to read them: no buffers.
_QUANTIZED = re.compile(
    r"(^|\.)(qweight|qzeros|g_idx|scb|codes|codebooks?|w_q)$|(^|[._])(weight|weight_packed|weight_scale|blocks|scales|zeros|absmax|quant_map)$|quant_state"
    r"|weight_shape$|weight_zero_point$|weight_format$|(gate|up|down|gate_up)_proj$"
)
_INTEGERS = frozenset({"BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64"})
_NARROW = _INTEGERS | {dtype for dtype, bits in DTYPE_BITS.items() if bits <= 8}
_METHOD = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")


def role(name: str) -> str:
    """The role of a tensor in the model, one of `ROLES`.

    The innermost module decides, with these exceptions: a norm is a norm wherever it stands; the gate of a mixture of
    experts is its router; an expert's weights are its own role, since only the tokens routed to it train them, while a
    shared expert, which every token passes, counts as mlp; what belongs to an output head is head.
    """
    modules = name.lower().split(".")
    inner = modules[:-1] if len(modules) > 1 and _LEAF.fullmatch(modules[-1]) else modules
    if _NORM.search(inner[-1]):
        return "norm"
    in_mlp = any(_MLP.search(module) or _EXPERT.search(module) for module in inner)
    if any(_ROUTER.search(module) for module in inner) or ("gate" in inner and in_mlp):
        return "router"
    if any(_SHARED_EXPERT.search(module) for module in inner):
        return "mlp"
    if any(_EXPERT.search(module) for module in inner):
        return "expert"
    if any(_HEAD.search(module) for module in inner) or inner == ["output"]:
        return "head"
    return _block_role(inner)


def _block_role(modules: list[str]) -> str:
    for module in reversed(modules):
        if _ATTENTION.search(module):
            return "attention"
        if _MLP.search(module):
            return "mlp"
        if _EMBEDDING.search(module) and "rotary" not in module:
            return "embedding"
    for module in reversed(modules):
        if _ATTENTION_LEAF.search(module):
            return "attention"
        if _MLP_LEAF.search(module):
            return "mlp"
    if modules == ["shared"]:  # the one embedding of T5 and BART, at the top
        return "embedding"
    # BERT and ViT name the second half of an MLP layer.N.output.
    if len(modules) > 2 and "output" in modules and any(_BLOCKS.match(module) for module in modules):
        return "mlp"
    return "other"


def layer(name: str) -> int | None:
    """The number of the outermost block a tensor belongs to; None outside blocks. Encoder and decoder both count from 0."""
    modules = name.split(".")
    for before, module in pairwise(modules):
        if _LAYER_NUMBER.fullmatch(module) and _BLOCKS.match(before.lower()):
            return int(module)
    return None


def is_buffer(name: str, shape: tuple[int, ...], dtype: str) -> bool:
    """Whether a stored tensor is no trained parameter: masks, rotary frequencies, running statistics, positions.

    By name; by shape for the causal masks that GPT-2, GPT-J and GPT-NeoX store as attention ``bias`` of shape (1, 1, n, n);
    and by dtype, since integers and booleans are not trained, unless they hold a quantized weight.
    """
    lower = name.lower()
    modules = lower.split(".")
    leaf = modules[-1]
    if _BUFFERS.fullmatch(leaf):
        return True
    if leaf == "bias" and len(shape) == 4 and shape[:2] == (1, 1) and shape[2] == shape[3] and len(modules) > 1:
        return bool(_ATTENTION.search(modules[-2]))
    if leaf == "weights" and len(modules) > 1 and modules[-2] == "embed_positions":
        return True  # the sinusoids of M2M100 and its kin; learned positions are called weight
    return dtype in _INTEGERS and not _QUANTIZED.search(lower)


def quantization(dtypes: Mapping[str, str], config: Mapping[str, Any] | None) -> str | None:
    """How the weights are quantized: "gptq", "awq", "bitsandbytes-4bit", "bitsandbytes-8bit", "mxfp4", "fp8", ...; None if they are not.

    dtypes: tensor name -> dtype. The tensors decide whether, since a configuration often survives a conversion;
    ``quantization_config.quant_method`` of the configuration then decides between methods that store alike.
    """
    found = _by_tensors(dtypes)
    if found is None or config is None:
        return found
    settings = config.get("quantization_config")
    method = settings.get("quant_method") if isinstance(settings, dict) else None
    if found in ("gptq", "awq", "integer", "fp8", "low-bit") and isinstance(method, str) and _METHOD.fullmatch(method.lower()):
        return method.lower()
    return found


def _by_tensors(dtypes: Mapping[str, str]) -> str | None:
    leaves = {name.rpartition(".")[2].lower() for name in dtypes}
    if "qweight" in leaves and ("qzeros" in leaves or "scales" in leaves):
        return "gptq" if "g_idx" in leaves else "awq"
    if any(leaf.startswith("bitsandbytes__") for leaf in leaves) or {"absmax", "quant_map"} <= leaves:
        return "bitsandbytes-4bit"
    if "scb" in leaves:
        return "bitsandbytes-8bit"
    if "weight_packed" in leaves:
        return "compressed-tensors"
    if any(leaf.endswith("blocks") and leaf[: -len("blocks")] + "scales" in leaves for leaf in leaves):
        return "mxfp4"
    if not any(dtype in _NARROW for dtype in dtypes.values()):
        return None
    weights = {dtype for name, dtype in dtypes.items() if not is_buffer(name, (), dtype)}
    if any(dtype.startswith("F8_E") for dtype in weights) and any(leaf.endswith(("_scale", "_scale_inv")) for leaf in leaves):
        return "fp8"
    if weights & {"F4", "F6_E2M3", "F6_E3M2"}:
        return "low-bit"
    return "integer" if weights & _INTEGERS else None
