"""Makes tiny checkpoints of many architectures, with the names and shapes that transformers saves and seeded values."""

import json
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file

State = dict[str, torch.Tensor]
# Orders of the rows of a fused query, key and value: one after the other; by head; by group of the heads that share a key and value.
Order = Literal["blocks", "heads", "groups"]

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
WIDTH, FFN, VOCABULARY, LAYERS, HEADS, KEY_HEADS, HEAD = 32, 48, 104, 3, 4, 2, 8
# Sizes under the names that most configurations use.
_SIZES: dict[str, Any] = {
    "hidden_size": WIDTH, "intermediate_size": FFN, "vocab_size": VOCABULARY, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
_GROUPED = _SIZES | {"num_key_value_heads": KEY_HEADS}
_OLD = {name: size for name, size in _SIZES.items() if name not in ("intermediate_size", "num_hidden_layers", "num_attention_heads")}


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model as transformers saves it.

    config: contents of config.json. state: name -> values. key_heads: heads of keys and values. fused: the order of a fused qkv, None if
    the three are stored separately. embedding: the input embedding; tied: names of its copies, which transformers omits.
    """

    name: str
    config: dict[str, Any]
    state: State
    key_heads: int
    fused: Order | None
    embedding: str
    tied: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Model:
    """A class of transformers, its configuration, and the fields of its `Architecture`."""

    model: str
    settings: dict[str, Any]
    dtype: torch.dtype = F32
    key_heads: int = HEADS
    fused: Order | None = None
    embedding: str = "model.embed_tokens.weight"
    tied: tuple[str, ...] = ()


_HEAD = ("lm_head.weight",)
_T5_COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
_MODELS: dict[str, _Model] = {
    "llama": _Model("LlamaForCausalLM", _GROUPED, BF16, KEY_HEADS),
    "qwen2": _Model("Qwen2ForCausalLM", _GROUPED | {"tie_word_embeddings": True}, BF16, KEY_HEADS, tied=_HEAD),
    "gemma": _Model("GemmaForCausalLM", _GROUPED | {"head_dim": HEAD}, BF16, KEY_HEADS, tied=_HEAD),
    "phi3": _Model("Phi3ForCausalLM", _GROUPED, BF16, KEY_HEADS, "blocks"),
    "gpt2": _Model(
        "GPT2LMHeadModel",
        _OLD | {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 40},
        fused="blocks", embedding="transformer.wte.weight", tied=_HEAD,
    ),
    "gpt_neox": _Model("GPTNeoXForCausalLM", _SIZES, F16, fused="heads", embedding="gpt_neox.embed_in.weight"),
    "bloom": _Model(
        "BloomForCausalLM",
        _OLD | {"n_layer": LAYERS, "n_head": HEADS},
        F16, fused="heads", embedding="transformer.word_embeddings.weight", tied=_HEAD,
    ),
    "falcon": _Model(
        "FalconForCausalLM",
        _SIZES | {"num_kv_heads": KEY_HEADS, "new_decoder_architecture": True, "ffn_hidden_size": FFN},
        BF16, KEY_HEADS, "groups", embedding="transformer.word_embeddings.weight", tied=_HEAD,
    ),
    "mixtral": _Model("MixtralForCausalLM", _GROUPED | {"num_local_experts": 3}, BF16, KEY_HEADS),
    "qwen3_moe": _Model(
        "Qwen3MoeForCausalLM", _GROUPED | {"num_experts": 4, "moe_intermediate_size": 24, "head_dim": HEAD}, BF16, KEY_HEADS
    ),
    "gpt_oss": _Model("GptOssForCausalLM", _GROUPED | {"num_local_experts": 3, "head_dim": HEAD}, BF16, KEY_HEADS),
    "mpt": _Model(
        "MptForCausalLM",
        {"d_model": WIDTH, "n_layers": LAYERS, "n_heads": HEADS, "vocab_size": VOCABULARY, "max_seq_len": 40},
        BF16, fused="blocks", embedding="transformer.wte.weight", tied=_HEAD,
    ),
    "opt": _Model(
        "OPTForCausalLM",
        _SIZES | {"ffn_dim": FFN, "word_embed_proj_dim": WIDTH, "max_position_embeddings": 40},
        F16, embedding="model.decoder.embed_tokens.weight", tied=_HEAD,
    ),
    "bert": _Model(
        "BertForMaskedLM",
        _SIZES | {"max_position_embeddings": 40},
        embedding="bert.embeddings.word_embeddings.weight", tied=("cls.predictions.decoder.weight",),
    ),
    "t5": _Model(
        "T5ForConditionalGeneration",
        {"d_model": WIDTH, "d_kv": HEAD, "d_ff": FFN, "num_layers": LAYERS, "num_heads": HEADS, "vocab_size": VOCABULARY},
        embedding="shared.weight", tied=_T5_COPIES,
    ),
    "wav2vec2": _Model(
        "Wav2Vec2Model",
        _SIZES | {
            "conv_dim": (16, 16), "conv_stride": (2, 2), "conv_kernel": (3, 3), "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 16,
            "num_conv_pos_embedding_groups": 4,
        },
        embedding="",
    ),
    "clip": _Model(
        "CLIPModel",
        {
            "text_config": _SIZES | {"max_position_embeddings": 40, "bos_token_id": 1, "eos_token_id": 2},
            "vision_config": _SIZES | {"image_size": 16, "patch_size": 4}, "projection_dim": 24,
        },
        embedding="text_model.embeddings.token_embedding.weight",
    ),
    "vit": _Model("ViTForImageClassification", _SIZES | {"image_size": 16, "patch_size": 4}, embedding=""),
}  # fmt: skip
ARCHITECTURES = tuple(_MODELS)


@cache
def architecture(name: str) -> Architecture:
    """Return the architecture of this name, whose state must not be changed."""
    told = _MODELS[name]
    config, shapes = _saved(told)
    state = {each: values(each, shape, told.dtype) for each, shape in shapes.items()}
    config["dtype"] = str(told.dtype).removeprefix("torch.")
    return Architecture(name, config, state, told.key_heads, told.fused, told.embedding, told.tied)


def values(name: str, shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Draw values that depend on the tensor's name and the seed only; norms vary around 1."""
    random = torch.Generator().manual_seed(zlib.crc32(name.encode()) + seed)
    drawn = torch.randn(shape, generator=random)
    around_one = (len(shape) == 1 and name.endswith("weight")) or name.endswith("original0")
    return (1 + 0.1 * drawn if around_one else 0.02 * drawn).to(dtype)


def llama(layers: int = LAYERS, seed: int = 0, dtype: torch.dtype = BF16, times: int = 1) -> State:
    """Make the state of a small Llama with this number of layers and seeded values. times: factor of its width."""
    first = {name: tensor for name, tensor in architecture("llama").state.items() if ".layers.0." in name}
    rest = {name: tensor for name, tensor in architecture("llama").state.items() if ".layers." not in name}
    every = {name.replace(".0.", f".{layer}.", 1): tensor for layer in range(layers) for name, tensor in first.items()} | rest
    return {name: values(name, tuple(times * size for size in tensor.shape), dtype, seed) for name, tensor in every.items()}


def _saved(told: _Model) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """Return the configuration that transformers saves, and names and shapes in its file."""
    import transformers

    model: Callable[[Any], Any] = getattr(transformers, told.model)
    configuration = model.config_class(**told.settings)  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as place:
        model(configuration).save_pretrained(place)
        config = json.loads((Path(place) / "config.json").read_text())
        return config, {name: tuple(tensor.shape) for name, tensor in load_file(Path(place) / "model.safetensors").items()}
