"""Converts states to other layouts by moving values only, in plain code as in the programs that do so.

A `Form` is such a conversion with the architectures to which it applies. `provenance` returns the origins of each tensor's values.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import gguf
import torch

from tests.layouts.architectures import ARCHITECTURES, HEADS, LAYERS, Architecture, Order, State

Rename = tuple[tuple[str, str], ...]

_QKV = re.compile(r"(.*\b)(q_proj|k_proj|v_proj|query|key|value|(?<=SelfAttention\.)[qkv])\.(weight|bias)")
_PARTS = {"q_proj": 0, "k_proj": 1, "v_proj": 2, "query": 0, "key": 1, "value": 2, "q": 0, "k": 1, "v": 2}
_FUSED = re.compile(r"(.*\b)(?:qkv_proj|query_key_value|c_attn)\.(weight|bias)")
_GATE_UP = re.compile(r"(.*\b)(gate_proj|up_proj)\.(weight|bias)")
_EXPERT = re.compile(r"(.*\bexperts\.)(\d+)\.(gate_proj|up_proj|down_proj|w1|w2|w3)\.(weight|bias)")
_EXPERT_PARTS = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
_LAYER = re.compile(r"((?:^|.*?\.)(?:layers|layer|h|block)\.)(\d+)(\..*)")


def fused_rows(order: Order, key_heads: int, rows: int) -> torch.Tensor:
    """Return for each row of a fused qkv its row in query, key and value stacked in this order, with ``rows`` rows in total."""
    size = rows // (HEADS + 2 * key_heads)
    query, key, value = torch.split(torch.arange(rows), [HEADS * size, key_heads * size, key_heads * size])
    if order == "blocks":
        return torch.arange(rows)
    return torch.cat([each.view(key_heads, -1) for each in (query, key, value)], dim=1).flatten()


def fuse_qkv(state: State, order: Order, key_heads: int, name: str = "qkv_proj.") -> State:
    """Fuse query, key and value into one tensor, in any order of rows."""
    parts, rest = _grouped(state, _QKV)
    for (before, leaf), three in parts.items():
        stacked = torch.cat([three[number] for number in (0, 1, 2)])
        rest[f"{before}{name}{leaf}"] = stacked[fused_rows(order, key_heads, stacked.shape[0])]
    return rest


def split_qkv(state: State, order: Order, key_heads: int, transposed: bool = False) -> State:
    """Split a fused query, key and value. transposed: matrices have inputs as the first axis, before and after."""
    result = dict(state)
    for name in state:
        match = _FUSED.fullmatch(name)
        if match:
            before, leaf = match.groups()
            fused = _turned(result.pop(name)) if transposed else result.pop(name)
            stacked = torch.empty_like(fused)
            stacked[fused_rows(order, key_heads, len(fused))] = fused
            size = len(fused) // (HEADS + 2 * key_heads)
            for part, rows in zip("qkv", torch.split(stacked, [HEADS * size, key_heads * size, key_heads * size]), strict=True):
                result[f"{before}{part}_proj.{leaf}"] = _turned(rows) if transposed else rows
    return result


def fuse_gate_up(state: State) -> State:
    """Fuse gate and up of a gated MLP, the gate first."""
    parts, rest = _grouped(state, _GATE_UP)
    return rest | {f"{before}gate_up_proj.{leaf}": torch.cat([two["gate_proj"], two["up_proj"]]) for (before, leaf), two in parts.items()}


def split_gate_up(state: State) -> State:
    """Split a fused gate and up into two matrices."""
    result = dict(state)
    for name in state:
        before, fused, leaf = name.partition("gate_up_proj.")
        if fused:
            gate, up = result.pop(name).chunk(2)
            result |= {f"{before}gate_proj.{leaf}": gate, f"{before}up_proj.{leaf}": up}
    return result


def stack_experts(state: State, gate_up: Literal["separate", "blocks", "interleaved"], inputs_first: bool) -> State:
    """Stack the matrices of all experts: [experts, outputs, inputs] or [experts, inputs, outputs].

    gate_up: as separate tensors; in one, as blocks with the gate's outputs first; in one, with outputs of gate and up interleaved.
    """
    parts: dict[tuple[str, str, str], dict[int, torch.Tensor]] = defaultdict(dict)
    result = {}
    for name, tensor in state.items():
        match = _EXPERT.fullmatch(name)
        if match:
            before, number, part, leaf = match.groups()
            parts[before, _EXPERT_PARTS.get(part, part), leaf][int(number)] = tensor
        else:
            result[name] = tensor
    stacks = {key: torch.stack([experts[number] for number in sorted(experts)]) for key, experts in parts.items()}
    if gate_up != "separate":
        for before, part, leaf in [key for key in stacks if key[1] == "gate_proj"]:
            gate, up = stacks.pop((before, part, leaf)), stacks.pop((before, "up_proj", leaf))
            joined = torch.stack([gate, up], dim=2).flatten(1, 2) if gate_up == "interleaved" else torch.cat([gate, up], dim=1)
            stacks[before, "gate_up_proj", leaf] = joined
    for (before, part, leaf), stack in stacks.items():
        result[before + part + ("_bias" if leaf == "bias" else "")] = stack.transpose(1, 2) if inputs_first and stack.dim() == 3 else stack
    return result


def unstack_experts(state: State) -> State:
    """Split the experts of gpt-oss: [experts, inputs, outputs] with gate and up alternating, and their biases."""
    result = dict(state)
    for name in state:
        before, stacked, part = name.partition(".experts.")
        if stacked:
            for number, expert in enumerate(result.pop(name)):
                outputs_first = expert.T if expert.dim() == 2 else expert
                leaf, each = ("bias" if expert.dim() == 1 else "weight"), f"{before}.experts.{number}"
                if part.startswith("gate_up"):
                    result |= {f"{each}.gate_proj.{leaf}": outputs_first[::2], f"{each}.up_proj.{leaf}": outputs_first[1::2]}
                else:
                    result[f"{each}.down_proj.{leaf}"] = outputs_first
    return result


def transpose_linear(state: State) -> State:
    """Transpose every matrix of the layers, as Conv1D stores them."""
    return {
        name: tensor.T if tensor.dim() == 2 and _LAYER.fullmatch(name) and "relative_attention_bias" not in name else tensor
        for name, tensor in state.items()
    }


def rotary_rows(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Interleave the two halves of each head's rows in a query or key, as for the rotary embeddings of Meta and llama.cpp."""
    return tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)


def rotary(state: State, key_heads: int) -> State:
    """Apply `rotary_rows` to every query and key."""
    result = dict(state)
    for name, tensor in state.items():
        match = _QKV.fullmatch(name)
        if match and _PARTS[match[2]] < 2:
            result[name] = rotary_rows(tensor, key_heads if _PARTS[match[2]] else HEADS)
    return result


def renamed(state: State, rules: Rename) -> State:
    """Apply each rule, a regular expression and its replacement, to all names, in this order."""
    result = {}
    for name, tensor in state.items():
        for pattern, new in rules:
            name = re.sub(pattern, new, name)
        result[name] = tensor
    assert len(result) == len(state)
    return result


META: Rename = (
    (r"^model\.", ""), (r"embed_tokens", "tok_embeddings"), (r"lm_head", "output"), (r"self_attn\.(.)_proj", r"attention.w\1"),
    (r"mlp\.gate_proj", "feed_forward.w1"), (r"mlp\.down_proj", "feed_forward.w2"), (r"mlp\.up_proj", "feed_forward.w3"),
    (r"input_layernorm", "attention_norm"), (r"post_attention_layernorm", "ffn_norm"),
)  # fmt: skip
INTERNLM: Rename = (
    (r"embed_tokens", "tok_embeddings"), (r"lm_head", "output"), (r"self_attn\.o_proj", "attention.wo"), (r"self_attn\.", "attention."),
    (r"mlp\.gate_proj", "feed_forward.w1"), (r"mlp\.down_proj", "feed_forward.w2"), (r"mlp\.up_proj", "feed_forward.w3"),
    (r"input_layernorm", "attention_norm"), (r"post_attention_layernorm", "ffn_norm"),
)  # fmt: skip
TIMM: Rename = (
    (r"^vit\.", ""), (r"embeddings\.patch_embeddings\.projection", "patch_embed.proj"), (r"embeddings\.cls_token", "cls_token"),
    (r"embeddings\.position_embeddings", "pos_embed"), (r"encoder\.layer\.", "blocks."), (r"attention\.attention\.", "attn."),
    (r"attention\.output\.dense", "attn.proj"), (r"intermediate\.dense", "mlp.fc1"), (r"output\.dense", "mlp.fc2"),
    (r"layernorm_before", "norm1"), (r"layernorm_after", "norm2"), (r"^layernorm", "norm"), (r"^classifier", "head"),
)  # fmt: skip
WEIGHT_NORM: Rename = ((r"parametrizations\.weight\.original0", "weight_g"), (r"parametrizations\.weight\.original1", "weight_v"))
MEGATRON: Rename = (
    (r"^model\.layers", "decoder.layers"), (r"block_sparse_moe", "mlp"), (r"mlp\.gate\.", "mlp.router."), (r"self_attn", "self_attention"),
    (r"\.o_proj", ".linear_proj"), (r"mlp\.gate_up_proj", "mlp.linear_fc1"), (r"mlp\.down_proj", "mlp.linear_fc2"),
    (r"(experts\.)(\d+)\.gate_up_proj\.weight", r"\1linear_fc1.weight\2"),
    (r"(experts\.)(\d+)\.(down_proj|w2)\.weight", r"\1linear_fc2.weight\2"),
    (r"input_layernorm\.weight", "self_attention.linear_qkv.layer_norm_weight"), (r"^model\.norm", "decoder.final_layernorm"),
    (r"embed_tokens", "embedding.word_embeddings"), (r"^model\.", ""), (r"lm_head", "output_layer"),
)  # fmt: skip
OLD_NORMS: Rename = ((r"LayerNorm\.weight", "LayerNorm.gamma"), (r"LayerNorm\.bias", "LayerNorm.beta"))


def fuse_expert_pairs(state: State) -> State:
    """Fuse gate and up of each single expert."""
    result = dict(state)
    for name, tensor in state.items():
        match = _EXPERT.fullmatch(name)
        if match and _EXPERT_PARTS.get(match[3], match[3]) == "gate_proj":
            del result[name]
            up = result.pop(name.replace("gate_proj", "up_proj").replace(".w1.", ".w3."))
            result[f"{match[1]}{match[2]}.gate_up_proj.weight"] = torch.cat([tensor, up])
    return result


def megatron(architecture: Architecture, state: State) -> State:
    """Apply the names and layouts of Megatron: qkv by group, gate and up fused, experts numbered behind their projection."""
    fused = fuse_qkv(state, "groups", architecture.key_heads, "linear_qkv.")
    fused = fuse_expert_pairs(fused) if architecture.name in _EXPERTS else fuse_gate_up(fused)
    norm = "pre_mlp_layernorm" if architecture.name in _EXPERTS else "mlp.linear_fc1.layer_norm"
    return renamed(fused, ((r"post_attention_layernorm(\.|_)weight", norm + ("_" if "fc1" in norm else ".") + "weight"), *MEGATRON))


def numbered_last(state: State) -> State:
    """Split the stacks of gpt-oss into linear layers with the number of the expert behind the projection; rows stay interleaved."""
    result = dict(state)
    for name in state:
        before, stacked, part = name.partition(".experts.")
        if stacked:
            for number, expert in enumerate(result.pop(name)):
                leaf, projection = ("weight", part) if expert.dim() == 2 else ("bias", part.removesuffix("_bias"))
                result[f"{before}.experts.{projection}s.{number}.{leaf}"] = _turned(expert)
    return result


def wrapped_by_peft(state: State) -> State:
    """Rename tensors as in the wrappers of an adapter, without its matrices."""
    return renamed(state, ((r"^", "base_model.model."), (r"(q_proj|v_proj|query|value|c_attn|query_key_value)\.", r"\1.base_layer.")))


def without_prefix(state: State) -> State:
    """Remove the prefix of the model's body from names."""
    firsts = [name.partition(".")[0] for name in state]
    return renamed(state, ((rf"^{max(set(firsts), key=firsts.count)}\.", ""),))


def with_copies(architecture: Architecture, state: State) -> State:
    """Add the copies of the tied embedding that transformers omits."""
    return state | dict.fromkeys(architecture.tied, state[architecture.embedding])


def with_layers(state: State, numbers: Sequence[int]) -> State:
    """Use layer ``numbers[i]`` as layer i, and keep everything outside the layers."""
    result = {}
    for name, tensor in state.items():
        match = _LAYER.fullmatch(name)
        if match is None:
            result[name] = tensor
        else:
            before, old, after = match.groups()
            result |= {f"{before}{new}{after}": tensor for new, number in enumerate(numbers) if number == int(old)}
    return result


def layer_of(name: str) -> int | None:
    """Return the number of a tensor's layer; None outside the layers."""
    match = _LAYER.fullmatch(name)
    return None if match is None else int(match[2])


# Architectures that llama.cpp converts by moving values only.
GGUF = {
    "llama": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2, "phi3": gguf.MODEL_ARCH.PHI3, "gpt2": gguf.MODEL_ARCH.GPT2,
    "gpt_neox": gguf.MODEL_ARCH.GPTNEOX, "bloom": gguf.MODEL_ARCH.BLOOM, "falcon": gguf.MODEL_ARCH.FALCON,
    "mixtral": gguf.MODEL_ARCH.LLAMA, "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE, "gpt_oss": gguf.MODEL_ARCH.GPT_OSS,
    "mpt": gguf.MODEL_ARCH.MPT,
}  # fmt: skip


def llama_cpp(architecture: Architecture, state: State) -> State:
    """Apply the names and layouts of llama.cpp's converter: experts stacked, qkv in blocks, linear layers, rotary rows for Llama."""
    name = architecture.name
    if name in ("llama", "mixtral"):
        state = rotary(state, architecture.key_heads)
    if name in ("mixtral", "qwen3_moe"):
        state = stack_experts(state, "separate", inputs_first=False)
    if name == "gpt_oss":
        state = stack_experts(unstack_experts(state), "separate", inputs_first=False)
    if name == "gpt2":
        state = transpose_linear(state)
    if architecture.fused in ("heads", "groups"):
        split = split_qkv(state, architecture.fused, architecture.key_heads)
        state = fuse_qkv(split, "blocks", architecture.key_heads, "query_key_value.")
    if name == "bloom":
        state = without_prefix(state)
    names = gguf.get_tensor_name_map(GGUF[name], LAYERS)
    result = {}
    for key, tensor in state.items():
        given = re.sub(
            r"(?:block_sparse_moe|mlp)\.(experts\.\w+_proj)(_bias)?$",
            lambda match: f"mlp.{match[1]}." + ("bias" if match[2] else "weight"),
            key,
        )
        new = names.get_name(given, try_suffixes=(".weight", ".bias"))
        assert new is not None, key
        result[new + (".weight" if new.endswith("sinks") else "")] = tensor
    assert len(result) == len(state)
    return result


@dataclass(frozen=True, slots=True)
class Form:
    """A layout. change: converts a state of one of ``architectures``."""

    name: str
    architectures: tuple[str, ...]
    change: Callable[[Architecture, State], State]

    def __call__(self, architecture: Architecture, state: State) -> State:
        return self.change(architecture, state)


def chained(*forms: Form) -> Form:
    """Apply forms one after the other, for the architectures to which all of them apply."""

    def change(architecture: Architecture, state: State) -> State:
        for form in forms:
            state = form(architecture, state)
        return state

    every = tuple(name for name in ARCHITECTURES if all(name in form.architectures for form in forms))
    return Form(", ".join(form.name for form in forms), every, change)


_GQA = ("llama", "qwen2", "gemma", "mixtral", "qwen3_moe", "gpt_oss")
_MHA = ("opt", "bert", "t5", "wav2vec2", "vit")
_DENSE = ("llama", "qwen2", "gemma")
_TIED = ("qwen2", "gemma", "gpt2", "bloom", "falcon", "opt", "bert", "t5")
_EXPERTS = ("mixtral", "qwen3_moe")
_ADAPTED = ("llama", "qwen2", "gpt2", "gpt_neox", "bloom", "falcon", "mixtral", "opt", "bert", "vit")

FORMS: dict[str, Form] = {
    form.name: form
    for form in (
        Form("as saved", ARCHITECTURES, lambda _, state: state),
        Form("data parallel", ARCHITECTURES, lambda _, state: renamed(state, ((r"^", "module."),))),
        Form("compiled", ARCHITECTURES, lambda _, state: renamed(state, ((r"^", "_orig_mod."),))),
        Form("body alone", ("llama", "qwen2", "phi3", "gpt2", "falcon", "opt", "bert", "vit"), lambda _, state: without_prefix(state)),
        Form("wrapped by peft", _ADAPTED, lambda _, state: wrapped_by_peft(state)),
        Form("qkv in blocks", (*_GQA, *_MHA), lambda of, state: fuse_qkv(state, "blocks", of.key_heads)),
        Form("qkv by group", _GQA, lambda of, state: fuse_qkv(state, "groups", of.key_heads)),
        Form("qkv by head", _MHA, lambda of, state: fuse_qkv(state, "heads", HEADS, "query_key_value.")),
        Form("in_proj", _MHA, lambda of, state: fuse_qkv(state, "blocks", HEADS, "in_proj_")),
        Form("qkv one by one", ("phi3", "gpt2", "gpt_neox", "bloom", "falcon"),
             lambda of, state: split_qkv(state, of.fused or "blocks", of.key_heads, transposed=of.name == "gpt2")),
        Form("gate and up fused", _DENSE, lambda _, state: fuse_gate_up(state)),
        Form("gate and up one by one", ("phi3",), lambda _, state: split_gate_up(state)),
        Form("experts stacked", _EXPERTS, lambda _, state: stack_experts(state, "separate", inputs_first=False)),
        Form("experts stacked, inputs first", _EXPERTS, lambda _, state: stack_experts(state, "separate", True)),
        Form("experts stacked, gate and up fused", _EXPERTS, lambda _, state: stack_experts(state, "blocks", inputs_first=False)),
        Form("experts stacked, gate and up fused, inputs first", _EXPERTS,
             lambda _, state: stack_experts(state, "blocks", inputs_first=True)),
        Form("experts stacked, gate and up alternating, inputs first", _EXPERTS,
             lambda _, state: stack_experts(state, "interleaved", inputs_first=True)),
        Form("experts one by one", ("gpt_oss",), lambda _, state: unstack_experts(state)),
        Form("experts stacked in blocks", ("gpt_oss",),
             lambda _, state: stack_experts(unstack_experts(state), "blocks", inputs_first=False)),
        Form("transposed", ("llama", "gpt2", "gpt_neox", "bloom", "falcon", "opt", "bert", "t5", "vit"),
             lambda _, state: transpose_linear(state)),
        Form("rotary rows", ("llama", "qwen2", "mixtral"), lambda of, state: rotary(state, of.key_heads)),
        Form("Meta", ("llama",), lambda of, state: renamed(rotary(state, of.key_heads), META)),
        Form("InternLM", ("llama",),
             lambda of, state: renamed(fuse_qkv(state, "groups", of.key_heads, "wqkv."), INTERNLM)),
        Form("timm", ("vit",), lambda _, state: renamed(fuse_qkv(state, "blocks", HEADS, "qkv."), TIMM)),
        Form("Megatron", ("llama", *_EXPERTS), megatron),
        Form("MLX", _EXPERTS,
             lambda _, state: renamed(stack_experts(state, "separate", False), ((r"experts\.(\w+_proj)$", r"switch_mlp.\1.weight"),))),
        Form("experts numbered last", ("gpt_oss",), lambda _, state: numbered_last(state)),
        Form("flat convolutions", ("vit", "clip"), lambda _, state: {n: t.flatten(1) if t.dim() > 3 else t for n, t in state.items()}),
        Form("weight_g and weight_v", ("wav2vec2",), lambda _, state: renamed(state, WEIGHT_NORM)),
        Form("gamma and beta", ("bert",), lambda _, state: renamed(state, OLD_NORMS)),
        Form("copies of the embedding", _TIED, with_copies),
        Form("llama.cpp", tuple(GGUF), llama_cpp),
    )
}  # fmt: skip


def provenance(form: Form, architecture: Architecture) -> dict[str, set[str]]:
    """Return for each converted tensor the names of the tensors with its values."""
    names = list(architecture.state)
    numbers = {name: torch.full(tensor.shape, float(at)) for at, (name, tensor) in enumerate(architecture.state.items())}
    return {name: {names[int(at)] for at in set(tensor.flatten().tolist())} for name, tensor in form(architecture, numbers).items()}


def _turned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.T if tensor.dim() == 2 else tensor


def _grouped(state: State, pattern: re.Pattern[str]) -> tuple[dict[tuple[str, str], dict[int | str, torch.Tensor]], State]:
    """Group matching tensors by the text before and after the part, and return the others too. The parts of a qkv are numbered."""
    parts: dict[tuple[str, str], dict[int | str, torch.Tensor]] = defaultdict(dict)
    rest = {}
    for name, tensor in state.items():
        match = pattern.fullmatch(name)
        if match:
            parts[match[1], match[3]][_PARTS.get(match[2], match[2])] = tensor
        else:
            rest[name] = tensor
    return parts, rest
