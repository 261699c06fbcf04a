"""An adapter changes the same weights however the base stores them, and whatever names its own matrices have."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file, save_file

from analyzers.checkpoints import open_checkpoint
from analyzers.core.errors import InvalidCheckpoint
from tests.checkpoints.adapters import LOCAL, assert_same, llama, merged_by_peft, merged_here, values, write

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated", "ignore:Could not find a config file in")

State = dict[str, torch.Tensor]


def _written(folder: Path, targets: list[str]) -> State:
    write(llama(), LoraConfig(r=4, lora_alpha=6, target_modules=targets), folder)
    return merged_by_peft(folder)


def _fused(state: State) -> State:
    """Fuse q, k and v, and gate and up, as Phi-3 stores them."""
    fused = {
        name: tensor
        for name, tensor in state.items()
        if not any(part in name for part in ("q_proj", "k_proj", "v_proj", "gate", "up_proj"))
    }
    for layer in ("model.layers.0.", "model.layers.1."):
        for target, module, parts in (("qkv_proj", "self_attn.", ("q", "k", "v")), ("gate_up_proj", "mlp.", ("gate", "up"))):
            fused[f"{layer}{module}{target}.weight"] = torch.cat([state[f"{layer}{module}{part}_proj.weight"] for part in parts])
    return fused


@pytest.mark.parametrize("targets", [["q_proj", "v_proj", "up_proj"], ["q_proj", "k_proj", "v_proj", "gate_proj", "down_proj"], ["k_proj"]])
def test_split_adapter_of_fused_base(targets: list[str], tmp_path: Path) -> None:
    merged = _written(tmp_path, targets)
    path = tmp_path / "base" / "model.safetensors"
    save_file(_fused(load_file(path)), path)
    assert_same(merged_here(tmp_path), _fused(merged))


def test_fused_adapter_of_split_base(tmp_path: Path) -> None:
    """The halves of the fused change are those of q, k and v: B is divided, A is shared."""
    merged = _written(tmp_path, ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"])
    path = tmp_path / "adapter" / "adapter_model.safetensors"
    tensors, joined = load_file(path), {}
    torch.manual_seed(3)
    for layer in ("0", "1"):
        for module, target, parts in (("self_attn", "qkv_proj", ("q", "k", "v")), ("mlp", "gate_up_proj", ("gate", "up"))):
            start = f"base_model.model.model.layers.{layer}.{module}."
            joined[f"{start}{target}.lora_A.weight"] = tensors[f"{start}{parts[0]}_proj.lora_A.weight"]
            joined[f"{start}{target}.lora_B.weight"] = torch.cat([tensors[f"{start}{part}_proj.lora_B.weight"] for part in parts])
            for part in parts[1:]:  # the oracle: the same A for all parts
                tensors[f"{start}{part}_proj.lora_A.weight"] = joined[f"{start}{target}.lora_A.weight"].clone()
    save_file(tensors, path)
    merged = merged_by_peft(tmp_path)
    save_file(joined, path)
    assert_same(merged_here(tmp_path), merged)


def _kohya(name: str) -> str:
    module, side, leaf = name.removeprefix("base_model.model.").rsplit(".", 2)
    return f"lora_te_{module.replace('.', '_')}.{'lora_down' if side == 'lora_A' else 'lora_up'}.{leaf}"


def _diffusers(name: str) -> str:
    return name.removeprefix("base_model.model.").replace("lora_A", "lora.down").replace("lora_B", "lora.up")


def _named(name: str) -> str:
    return name.replace("lora_A", "lora_A.default").replace("lora_B", "lora_B.default")


@pytest.mark.parametrize("rename", [_kohya, _diffusers, _named, lambda name: name.removeprefix("base_model.model.model.")])
def test_names(rename: Callable[[str], str], tmp_path: Path) -> None:
    merged = _written(tmp_path, ["q_proj", "down_proj"])
    path = tmp_path / "adapter" / "adapter_model.safetensors"
    tensors = {rename(name): tensor for name, tensor in load_file(path).items()}
    if rename in (_kohya, _diffusers):  # their scale is in the file
        (tmp_path / "adapter" / "adapter_config.json").unlink()
        tensors |= {f"{name.split('.lora')[0]}.alpha": torch.tensor(6.0) for name in tensors}
    save_file(tensors, path)
    assert_same(merged_here(tmp_path), merged)


def test_pickled_adapter(tmp_path: Path) -> None:
    merged = _written(tmp_path, ["q_proj"])
    path = tmp_path / "adapter" / "adapter_model.safetensors"
    torch.save(load_file(path), tmp_path / "adapter" / "adapter_model.bin")
    path.unlink()
    assert_same(merged_here(tmp_path), merged)


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_model.bin"])
def test_adapter_named_by_its_file(name: str, tmp_path: Path) -> None:
    """The configuration next to it is read; without it, nothing states the scale."""
    merged, path = _written(tmp_path, ["q_proj", "down_proj"]), tmp_path / "adapter" / "adapter_model.safetensors"
    if name.endswith(".bin"):
        torch.save(load_file(path), path.with_suffix(".bin"))
        path.unlink()
    reference = "{0}/base+{0}/adapter/" + name
    assert_same(merged_here(tmp_path, reference), merged)
    (tmp_path / "adapter" / "adapter_config.json").unlink()
    with pytest.raises(InvalidCheckpoint, match="states the scale"):
        merged_here(tmp_path, reference)


def test_unmerged_checkpoint(tmp_path: Path) -> None:
    """One file with base_layer next to the matrices is a base with its adapter."""
    merged = _written(tmp_path, ["q_proj", "down_proj"])
    both = {}
    for name, tensor in load_file(tmp_path / "base" / "model.safetensors").items():
        changed = "q_proj" in name or "down_proj" in name
        both[f"base_model.model.{name.replace('.weight', '.base_layer.weight') if changed else name}"] = tensor
    both |= {_named(name): tensor for name, tensor in load_file(tmp_path / "adapter" / "adapter_model.safetensors").items()}
    shutil.copytree(tmp_path / "base", tmp_path / "unmerged")
    save_file(both, tmp_path / "unmerged" / "model.safetensors")
    with open_checkpoint(str(tmp_path / "unmerged"), LOCAL) as checkpoint:
        assert any(".lora_A." in tensor.name for tensor in checkpoint.tensors), "without a scale, nothing is merged"
    shutil.copy(tmp_path / "adapter" / "adapter_config.json", tmp_path / "unmerged")
    with open_checkpoint(str(tmp_path / "unmerged"), LOCAL) as checkpoint:
        assert checkpoint.ref == str(tmp_path / "unmerged")
        assert_same(values(checkpoint), merged)


def test_convolutions(tmp_path: Path) -> None:
    """Kernels are (out, in, height, width), A is (r, in, height, width), B (out, r, 1, 1)."""
    torch.manual_seed(0)
    weight, a, b = torch.randn(6, 4, 3, 3), torch.randn(2, 4, 3, 3), torch.randn(6, 2, 1, 1)
    for folder in ("base", "adapter"):
        (tmp_path / folder).mkdir()
    save_file({"down.conv.weight": weight}, tmp_path / "base" / "model.safetensors")
    (tmp_path / "base" / "config.json").write_text("{}")
    save_file(
        {"base_model.model.down.conv.lora_A.weight": a, "base_model.model.down.conv.lora_B.weight": b},
        tmp_path / "adapter" / "a.safetensors",
    )
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 3}))
    expected = weight + (b.flatten(1) @ a.flatten(1)).reshape(weight.shape) * 1.5
    assert torch.allclose(torch.from_numpy(merged_here(tmp_path)["down.conv.weight"]), expected, rtol=1e-5)


def test_adapter_in_the_folder_of_its_base(tmp_path: Path) -> None:
    """FOLDER+FOLDER is the model of a folder with its adapter, and FOLDER+FOLDER/adapter one with an adapter inside."""
    write(llama(), LoraConfig(r=4, target_modules=["q_proj"]), tmp_path)
    expected = merged_here(tmp_path)
    shutil.copytree(tmp_path / "adapter", tmp_path / "base" / "inside")
    with open_checkpoint(f"{tmp_path}/base+{tmp_path}/base/inside", LOCAL) as checkpoint:
        assert not checkpoint.not_read and {note.code for note in checkpoint.notes} == {"merged"}
        found = values(checkpoint)
    assert all(np.array_equal(found[name], each) for name, each in expected.items())
    for path in (tmp_path / "base" / "inside").iterdir():
        path.rename(tmp_path / "base" / path.name)
    with open_checkpoint(f"{tmp_path}/base+{tmp_path}/base", LOCAL) as checkpoint:
        assert not checkpoint.not_read and checkpoint.ref == f"{tmp_path}/base+{tmp_path}/base"
        found = values(checkpoint)
    assert all(np.array_equal(found[name], each) for name, each in expected.items())
