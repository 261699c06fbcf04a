"""Tiny checkpoints of many architectures, saved by transformers and then changed in ways that uploads go wrong, or do not.

`CHECKPOINTS` has all (architecture, mutation) pairs; `build` writes one. Each is seeded by its names.
"""

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig

Values = dict[str, Tensor]
Config = dict[str, Any]

_SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 96}
_KEYS = {**_SIZES, "num_key_value_heads": 2, "pad_token_id": 0}
_POSITIONS = {"max_position_embeddings": 16}
_GPT = {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 96, "n_positions": 16}
_T5 = {"d_model": 32, "d_ff": 48, "d_kv": 8, "num_layers": 3, "num_decoder_layers": 3, "num_heads": 4, "vocab_size": 96}
_BART = {
    "d_model": 32, "encoder_layers": 3, "decoder_layers": 3, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": 96, "max_position_embeddings": 16,
}  # fmt: skip
_EXPERTS = {**_KEYS, "moe_intermediate_size": 24, "num_experts_per_tok": 2}
_TIED, _UNTIED = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}

# Name -> (model type, class, settings).
ARCHITECTURES: dict[str, tuple[str, str, Config]] = {
    "llama": ("llama", "LlamaForCausalLM", _KEYS | _UNTIED),
    "llama-base": ("llama", "LlamaModel", _KEYS),
    "qwen2": ("qwen2", "Qwen2ForCausalLM", _KEYS | _TIED),
    "gemma3": ("gemma3_text", "Gemma3ForCausalLM", _KEYS | {"head_dim": 8, "layer_types": ["full_attention"] * 3}),
    "phi3": ("phi3", "Phi3ForCausalLM", _KEYS | _UNTIED),
    "gpt2": ("gpt2", "GPT2LMHeadModel", _GPT),
    "gpt-neox": ("gpt_neox", "GPTNeoXForCausalLM", _SIZES),
    "opt": ("opt", "OPTForCausalLM", {**_SIZES, **_POSITIONS, "ffn_dim": 48, "word_embed_proj_dim": 32, "pad_token_id": 0}),
    "bloom": ("bloom", "BloomForCausalLM", {"hidden_size": 32, "n_layer": 3, "n_head": 4, "vocab_size": 96}),
    "mixtral": ("mixtral", "MixtralForCausalLM", _KEYS | _UNTIED | {"num_local_experts": 4}),
    "qwen3-moe": ("qwen3_moe", "Qwen3MoeForCausalLM", _EXPERTS | {"num_experts": 4, "head_dim": 8} | _UNTIED),
    "deepseek-v3": (
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        _EXPERTS
        | {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "kv_lora_rank": 8, "q_lora_rank": 8}
        | {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "num_key_value_heads": 4},
    ),
    "mamba": ("mamba", "MambaForCausalLM", {"hidden_size": 32, "num_hidden_layers": 3, "vocab_size": 96, "state_size": 4}),
    "bert": ("bert", "BertForMaskedLM", _SIZES | {"max_position_embeddings": 16}),
    "roberta": ("roberta", "RobertaForSequenceClassification", _SIZES | {"max_position_embeddings": 16, "num_labels": 5}),
    "distilbert": ("distilbert", "DistilBertModel", {"dim": 32, "hidden_dim": 48, "n_layers": 3, "n_heads": 4, "vocab_size": 96}),
    "t5": ("t5", "T5ForConditionalGeneration", _T5),
    "bart": ("bart", "BartForConditionalGeneration", _BART),
    "vit": ("vit", "ViTForImageClassification", {**_SIZES, "image_size": 16, "patch_size": 8, "num_labels": 7}),
    "whisper": ("whisper", "WhisperForConditionalGeneration", _BART | {"num_mel_bins": 8, "pad_token_id": 0}),
}  # fmt: skip
# More of them, for tests of other rules.
OTHERS: dict[str, tuple[str, str, Config]] = {
    "qwen3-moe-wide": (
        "qwen3_moe", "Qwen3MoeForCausalLM", _EXPERTS | {"num_experts": 4, "head_dim": 8, "moe_intermediate_size": 32} | _UNTIED
    ),
    "glm4-moe": (
        "glm4_moe", "Glm4MoeForCausalLM", _EXPERTS | {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
    ),
    "dots1": (
        "dots1", "Dots1ForCausalLM",
        _EXPERTS | {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "n_shared_experts": 1},
    ),
}  # fmt: skip


@dataclass
class Upload:
    """A checkpoint to write: tensors, configuration, and the format."""

    values: Values
    config: Config
    chance: random.Random
    pickled: bool = False

    def pick(self, pattern: str = "", least: int = 1) -> str | None:
        """Choose a tensor with at least ``least`` axes whose name contains the pattern; None if there is none."""
        names = [name for name in sorted(self.values) if re.search(pattern, name) and self.values[name].dim() >= least]
        return self.chance.choice(names) if names else None


MUTATIONS: dict[str, Callable[[Upload], bool]] = {}


def mutation(change: Callable[[Upload], bool]) -> Callable[[Upload], bool]:
    """Register a change of an upload, which returns whether it could be made."""
    MUTATIONS[change.__name__.replace("_", "-")] = change
    return change


def dropping(pattern: str, least: int) -> Callable[[Upload], bool]:
    """The change that drops a tensor."""

    def change(upload: Upload) -> bool:
        name = upload.pick(pattern, least)
        return name is not None and upload.values.pop(name) is not None

    return change


def replacing(replace: Callable[[Tensor], Tensor]) -> Callable[[Upload], bool]:
    """The change that replaces a matrix."""

    def change(upload: Upload) -> bool:
        name = upload.pick(least=2)
        assert name is not None
        upload.values[name] = replace(upload.values[name])
        return True

    return change


MUTATIONS |= {
    "dropped": dropping("", 2),
    "dropped-embedding": dropping(r"embed_tokens|wte|word_embeddings|shared|embed_in|embeddings\.weight|patch_embed", 2),
    "resized": replacing(lambda value: value[: len(value) // 2].clone()),
    "emptied": replacing(lambda value: torch.empty(0)),
    "emptied-rows": replacing(lambda value: torch.empty(0, *value.shape[1:])),
    "reinitialized": replacing(lambda value: torch.randn(value.shape, generator=torch.Generator().manual_seed(1)) / 50),
    "zeroed": replacing(torch.zeros_like),
}


@mutation
def unchanged(upload: Upload) -> bool:
    return True


@mutation
def prefixed(upload: Upload) -> bool:
    """Add the prefix of a wrapper of distributed training to names."""
    upload.values = {f"module.{name}": value for name, value in upload.values.items()}
    return True


@mutation
def without_prefix(upload: Upload) -> bool:
    """Remove the base model's prefix from names, in the class with the head or in a wrapper without it."""
    upload.values = {re.sub(r"^(model|transformer|bert|roberta|vit|gpt_neox|backbone)\.", "", name): v for name, v in upload.values.items()}
    return True


@mutation
def more_tokens(upload: Upload) -> bool:
    """Add tokens to the embedding, and keep the old size in the configuration."""
    name = upload.pick(r"embed_tokens|wte|word_embeddings|shared|embed_in", least=2)
    if name is None:
        return False
    upload.values[name] = torch.cat([upload.values[name], upload.values[name][:8]])
    return True


@mutation
def transposed(upload: Upload) -> bool:
    names = [name for name, value in sorted(upload.values.items()) if value.dim() == 2 and value.shape[0] != value.shape[1]]
    name = upload.chance.choice(names)
    upload.values[name] = upload.values[name].T.contiguous()
    return True


@mutation
def tied(upload: Upload) -> bool:
    """Omit the head, which the configuration ties."""
    upload.config["tie_word_embeddings"] = True
    for name in [name for name in upload.values if re.search(r"lm_head\.weight|embed_out|decoder\.weight$", name)]:
        del upload.values[name]
    return True


@mutation
def untied(upload: Upload) -> bool:
    """Omit the head, which the configuration does not tie."""
    tied(upload)
    upload.config["tie_word_embeddings"] = False
    return True


@mutation
def with_head(upload: Upload) -> bool:
    """Store the tied head too."""
    name = upload.pick(r"embed_tokens|wte|word_embeddings|shared", least=2)
    if name is None or any("lm_head" in each for each in upload.values):
        return False
    upload.values["lm_head.weight"] = upload.values[name].clone()
    return True


@mutation
def split(upload: Upload) -> bool:
    name = upload.pick(r"qkv|gate_up|c_attn|query_key_value|experts|in_proj|up_proj|fc1|dense|wi", least=2) or upload.pick(least=2)
    assert name is not None
    whole = upload.values.pop(name)
    for number, part in enumerate(whole.chunk(2)):
        upload.values[f"{name.removesuffix('.weight')}.{number}.weight"] = part.clone()
    return True


def _layers(upload: Upload) -> list[str]:
    return [name for name in upload.values if re.search(r"\.2\.", name)]


@mutation
def pruned(upload: Upload) -> bool:
    """Omit the last of three layers, which the configuration still counts."""
    for name in _layers(upload):
        del upload.values[name]
    return True


@mutation
def pruned_and_counted(upload: Upload) -> bool:
    pruned(upload)
    for name in [
        name for name in upload.config if re.fullmatch(r"num_hidden_layers|n_layers?|(num|encoder|decoder)_(decoder_)?layers", name)
    ]:
        upload.config[name] = 2
    if "layer_types" in upload.config:
        upload.config["layer_types"] = upload.config["layer_types"][:2]
    return True


@mutation
def pickle(upload: Upload) -> bool:
    upload.pickled = True
    return True


@mutation
def extra(upload: Upload) -> bool:
    upload.values["mtp.fc.weight"] = torch.randn(8, 8, generator=torch.Generator().manual_seed(1))
    return True


CHECKPOINTS = [(architecture, change) for architecture in ARCHITECTURES for change in MUTATIONS]
_saved: dict[str, tuple[Values, Config]] = {}


def saved(architecture: str, folder: Path) -> tuple[Values, Config]:
    """Return the tensors and the configuration that transformers saves for an architecture."""
    if architecture not in _saved:
        kind, model_class, settings = (ARCHITECTURES | OTHERS)[architecture]
        torch.manual_seed(0)
        model = getattr(transformers, model_class)(AutoConfig.for_model(kind, **settings))
        model.save_pretrained(folder / "saved")
        _saved[architecture] = load_file(folder / "saved/model.safetensors"), json.loads((folder / "saved/config.json").read_text())
    values, config = _saved[architecture]
    return dict(values), json.loads(json.dumps(config))


def build(folder: Path, architecture: str, change: str) -> Path | None:
    """Write one of `CHECKPOINTS` into a folder of ``folder``; None if the architecture has nothing to change in this way."""
    upload = Upload(*saved(architecture, folder), random.Random(f"{architecture} {change}"))
    if not MUTATIONS[change](upload):
        return None
    path = folder / change
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(upload.config))
    if upload.pickled:
        torch.save(upload.values, path / "pytorch_model.bin")
    else:
        save_file(upload.values, path / "model.safetensors", {"format": "pt"})
    return path
