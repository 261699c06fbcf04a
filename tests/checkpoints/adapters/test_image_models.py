"""Adapters of image models, stored by diffusers and kohya's scripts without a configuration: the scale is in the file, or 1."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.checkpoints.adapters import merged_here

_UNET = "down_blocks.0.attn1.to_q"
_TEXT = "text_model.encoder.layers.0.self_attn.q_proj"
_MODULES = {"unet": _UNET, "text_encoder": _TEXT, "text_encoder_2": _TEXT}
Spell = Callable[[str, str, str], str]


def _pipeline(folder: Path, parts: Mapping[str, str] = _MODULES) -> dict[str, torch.Tensor]:
    """Write a pipeline whose two text encoders have the same names; return its weights by folder."""
    weights = {}
    for seed, (part, module) in enumerate(parts.items()):
        weights[part] = torch.randn(16, 8, generator=torch.Generator().manual_seed(seed))
        (folder / "base" / part).mkdir(parents=True)
        (folder / "base" / part / "config.json").write_text("{}")
        name = "diffusion_pytorch_model" if part == "unet" else "model"
        save_file({f"{module}.weight": weights[part]}, folder / "base" / part / f"{name}.safetensors")
    (folder / "base" / "model_index.json").write_text(json.dumps({part: ["transformers", "X"] for part in parts}))
    return weights


def _adapter(folder: Path, spell: Spell, file: str, metadata: dict[str, str] | None = None, **alphas: float) -> dict[str, torch.Tensor]:
    """Write an adapter of all parts; return B A of each."""
    stored: dict[str, torch.Tensor] = {}
    products: dict[str, torch.Tensor] = {}
    for seed, (part, module) in enumerate(_MODULES.items()):
        drawn = torch.Generator().manual_seed(10 + seed)
        a, b = torch.randn(4, 8, generator=drawn), torch.randn(16, 4, generator=drawn)
        stored |= {spell(part, module, "a"): a, spell(part, module, "b"): b}
        if part in alphas:
            stored[spell(part, module, "alpha")] = torch.tensor(alphas[part])
        products[part] = b @ a
    (folder / "adapter").mkdir()
    save_file(stored, folder / "adapter" / file, metadata)
    return products


def _peft(part: str, module: str, what: str) -> str:
    return f"{part}.{module}.{'alpha' if what == 'alpha' else f'lora_{what.upper()}.weight'}"


_SIDES = {"a": ".down.weight", "b": ".up.weight"}


def _diffusers(part: str, module: str, what: str) -> str:
    return f"{part}.{module}" + (".alpha" if what == "alpha" else f".lora{_SIDES[what]}")


def _kohya(part: str, module: str, what: str) -> str:
    short = {"unet": "unet", "text_encoder": "te1", "text_encoder_2": "te2"}[part]
    return f"lora_{short}_{module.replace('.', '_')}." + ("alpha" if what == "alpha" else f"lora_{_SIDES[what][1:]}")


def _assert_merged(folder: Path, weights: Mapping[str, torch.Tensor], products: Mapping[str, torch.Tensor], **scales: float) -> None:
    merged = merged_here(folder)
    for part, weight in weights.items():
        name = f"{part}/{_MODULES[part]}.weight" if len(weights) > 1 else f"{_MODULES[part]}.weight"
        expected = weight + products[part] * scales.get(part, 1)
        torch.testing.assert_close(torch.from_numpy(merged[name]), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("spell", "file"),
    [(_peft, "pytorch_lora_weights.safetensors"), (_diffusers, "pytorch_lora_weights.safetensors"), (_kohya, "style.safetensors")],
)
def test_scales(spell: Spell, file: str, tmp_path: Path) -> None:
    weights = _pipeline(tmp_path)
    products = _adapter(tmp_path, spell, file, unet=2.0)
    _assert_merged(tmp_path, weights, products, unet=0.5)


def test_scales_in_metadata(tmp_path: Path) -> None:
    """diffusers stores the configuration of each part in the file."""
    stated = {"unet.r": 4, "unet.lora_alpha": 2, "text_encoder.r": 8, "text_encoder.rank_pattern": {"q_proj": 4}}
    stated |= {"text_encoder.lora_alpha": 12, "text_encoder_2.r": 4, "text_encoder_2.alpha_pattern": {"layers.0.self_attn.q_proj": 1}}
    weights = _pipeline(tmp_path)
    products = _adapter(tmp_path, _peft, "pytorch_lora_weights.safetensors", {"lora_adapter_metadata": json.dumps(stated)})
    _assert_merged(tmp_path, weights, products, unet=0.5, text_encoder=3, text_encoder_2=0.25)


@pytest.mark.parametrize("spell", [_peft, _kohya])
def test_one_part(spell: Spell, tmp_path: Path) -> None:
    """The base may be one part of the pipeline."""
    weights = _pipeline(tmp_path, {"unet": _UNET})
    products = _adapter(tmp_path, spell, "pytorch_lora_weights.safetensors")
    (tmp_path / "base" / "unet").rename(tmp_path / "unet")
    (tmp_path / "base" / "model_index.json").unlink()
    (tmp_path / "base").rmdir()
    (tmp_path / "unet").rename(tmp_path / "base")
    _assert_merged(tmp_path, weights, products)
