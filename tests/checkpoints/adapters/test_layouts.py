"""Where an adapter may be stored, and which spellings are refused by name."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file, save_file

from analyzers.checkpoints import account_notes, open_checkpoint
from analyzers.checkpoints.tensor import Tensor
from analyzers.checkpoints.tensor_names.adapters import is_adapter, is_adapter_parameter
from analyzers.core.errors import InvalidCheckpoint, UnsupportedWeights
from tests.checkpoints.adapters import LOCAL, assert_same, llama, merged_by_peft, merged_here, values, write

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated", "ignore:Could not find a config file in")


def _written(folder: Path, targets: list[str]) -> dict[str, torch.Tensor]:
    write(llama(), LoraConfig(r=4, lora_alpha=6, target_modules=targets), folder)
    return merged_by_peft(folder)


def _named(name: str) -> str:
    return name.replace("lora_A", "lora_A.default").replace("lora_B", "lora_B.default")


@pytest.mark.parametrize("rename", [_named, lambda name: name.removeprefix("base_model.model.model.")])
def test_names(rename: Callable[[str], str], tmp_path: Path) -> None:
    merged = _written(tmp_path, ["q_proj", "down_proj"])
    path = tmp_path / "adapter" / "adapter_model.safetensors"
    save_file({rename(name): tensor for name, tensor in load_file(path).items()}, path)
    assert_same(merged_here(tmp_path), merged)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("lora_te_text_model_q_proj.lora_down.weight", "fuse_lora of diffusers"),
        ("unet.attn1.to_q.lora.down.weight", "fuse_lora of diffusers"),
        ("unet.attn1.processor.to_q_lora.down.weight", "fuse_lora of diffusers"),
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_A", "merge_and_unload of peft"),
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_B.bias", "merge_and_unload of peft"),
        ("base_model.model.model.layers.0.self_attn.q_proj.hada_w1_a", "merge_and_unload of peft"),
        ("base_model.model.model.layers.0.self_attn.k_proj.ia3_l", "merge_and_unload of peft"),
        ("blk.0.attn_q.weight.lora_a", "llama-export-lora"),
    ],
)
def test_other_spellings_are_refused_with_what_merges_them(name: str, how: str, tmp_path: Path) -> None:
    _written(tmp_path, ["q_proj"])
    assert is_adapter_parameter(name)
    save_file({name: torch.ones(4, 4)}, tmp_path / "adapter" / "adapter_model.safetensors")
    with pytest.raises(UnsupportedWeights, match=f"{re.escape(name)}.*as peft saves them: it is merged by .*{how}"):
        merged_here(tmp_path)


def test_a_base_that_stores_the_modules_in_another_form_is_not_merged(tmp_path: Path) -> None:
    _written(tmp_path, ["q_proj"])
    path = tmp_path / "base" / "model.safetensors"
    stored = load_file(path)
    fused = {name.replace("q_proj", "qkv_proj"): tensor.repeat(3, 1) if "q_proj" in name else tensor for name, tensor in stored.items()}
    save_file(fused, path)
    with pytest.raises(UnsupportedWeights, match="the base has no such module"):
        merged_here(tmp_path)


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
    """One file with base_layer next to the matrices is read as it is stored, and a note says so."""
    _written(tmp_path, ["q_proj", "down_proj"])
    both = {}
    for name, tensor in load_file(tmp_path / "base" / "model.safetensors").items():
        changed = "q_proj" in name or "down_proj" in name
        both[f"base_model.model.{name.replace('.weight', '.base_layer.weight') if changed else name}"] = tensor
    both |= {_named(name): tensor for name, tensor in load_file(tmp_path / "adapter" / "adapter_model.safetensors").items()}
    shutil.copytree(tmp_path / "base", tmp_path / "unmerged")
    save_file(both, tmp_path / "unmerged" / "model.safetensors")
    shutil.copy(tmp_path / "adapter" / "adapter_config.json", tmp_path / "unmerged")
    with open_checkpoint(str(tmp_path / "unmerged"), LOCAL) as checkpoint:
        assert {tensor.name for tensor in checkpoint.tensors} == both.keys()
        assert "unmerged-adapter" in {note.code for note in account_notes(checkpoint, checkpoint.tensors)}


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


def _tensors(*names: str) -> list[Tensor]:
    return [Tensor(name, "F32", (2,), 0, 8 * at, 8, "other", None, False) for at, name in enumerate(names)]


ADAPTERS = """lora_unet_x.lora_down.weight lora_unet_x.lora_up.weight lora_unet_x.alpha; double_blocks.0.processor.qkv_lora1.down.weight;
    unet.down_blocks.0.processor.to_q_lora.down.weight; lora_unet_x.hada_w1_a lora_unet_x.hada_w2_b lora_unet_x.alpha;
    lora_unet_x.lokr_w1 lora_unet_x.lokr_w2_a lora_unet_x.alpha; lora_te_x.oft_blocks lora_te_x.oft_diag; prompt_embeddings;
    base_model.model.q_proj.lora_A.weight base_model.model.q_proj.lora_B.weight; blk.0.attn_q.weight.lora_a; model.q_proj.oft_R.weight"""


def test_adapters() -> None:
    for names in ADAPTERS.split(";"):
        assert is_adapter(["x.safetensors"], _tensors(*names.split())), names


def test_models_with_a_few_or_similar_names_are_no_adapters() -> None:
    assert not is_adapter(["x.safetensors"], _tensors("model.q_proj.weight", "model.up.weight", "model.q_proj.lora_A.weight"))
    assert not is_adapter(["x.safetensors"], _tensors("explora.down.weight", "mlp.up.weight", "blocks.0.down.weight"))
    assert is_adapter(["adapter_model.safetensors"], _tensors("anything"))
