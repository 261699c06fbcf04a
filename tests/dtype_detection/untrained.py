"""Makes untrained models of many architectures with transformers, from small configurations, seeded, in fp32."""

from pathlib import Path
from typing import Any

# Configurations by model_type of config.json, those of labelled models first.
SETTINGS: dict[str, dict[str, Any]] = {
    "longformer": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "attention_window": 8},
    "led": {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4},
    "m2m_100": {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 8000},
    "opt": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 128, "word_embed_proj_dim": 64},
    "bloom": {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 8000},
    "t5": {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4},
    "mt5": {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 8000},
    "pegasus": {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 8000},
    "gpt_neo": {"hidden_size": 64, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "vocab_size": 8000},
    "mamba": {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 8000},
    "bert": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128},
    "llama": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 8000},
    "vit": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128},
}


def save_untrained(model_type: str, folder: Path) -> None:
    """Save a seeded model of an architecture as transformers initializes it."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModel, set_seed

    models: Any = AutoModel  # its methods are untyped
    set_seed(0)
    model = models.from_config(CONFIG_MAPPING[model_type](**SETTINGS[model_type]), dtype=torch.float32)
    model.save_pretrained(folder)
