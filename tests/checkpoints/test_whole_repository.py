"""Opened repositories of several files: what is read of them, and what is listed as not read."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch
from transformers import LlamaConfig, LlamaForCausalLM

from analyzers.__main__ import main
from analyzers.checkpoints import Access, Checkpoint, open_checkpoint, read_range
from analyzers.core.errors import InvalidCheckpoint, UnsupportedWeights
from tests.checkpoints.test_gguf_header import written

_PAIR = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
_INDEX = "model.safetensors.index.json"


def _open(path: str | Path) -> Checkpoint:
    return open_checkpoint(str(path), Access(local=True))


def _save(path: Path, *names: str, length: int = 3) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: np.ones(length, np.float32) for name in names}, path)


def _index_of(shards: Mapping[str, str]) -> dict[str, Any]:
    return {"weight_map": dict(shards)}


def _sharded(folder: Path) -> None:
    for number, name in enumerate(_PAIR):
        _save(folder / name, f"layers.{number}.weight")
    (folder / _INDEX).write_text(json.dumps(_index_of({f"layers.{number}.weight": name for number, name in enumerate(_PAIR)})))


def test_of_several_sets_the_one_that_transformers_loads_is_read(tmp_path: Path) -> None:
    """Each set has its own value; they are removed one after another in the order in which transformers takes them."""
    name = "model.norm.weight"
    config = LlamaConfig(vocab_size=8, hidden_size=4, intermediate_size=4, num_hidden_layers=1, num_attention_heads=1)
    state = LlamaForCausalLM(config).state_dict()
    config.save_pretrained(tmp_path)

    def valued(value: float) -> dict[str, torch.Tensor]:
        return {each: tensor.clone() if each != name else torch.full_like(tensor, value) for each, tensor in state.items()}

    shards = ["x-00001-of-00001.safetensors", "x-00001-of-00001.bin"]
    save_torch(valued(1), tmp_path / "model.safetensors", {"format": "pt"})
    save_torch(valued(2), tmp_path / shards[0], {"format": "pt"})
    torch.save(valued(3), tmp_path / "pytorch_model.bin")
    torch.save(valued(4), tmp_path / shards[1])
    for index, shard in ((_INDEX, shards[0]), ("pytorch_model.bin.index.json", shards[1])):
        (tmp_path / index).write_text(json.dumps({"metadata": {}} | _index_of(dict.fromkeys(state, shard))))
    for value, removed in enumerate((["model.safetensors"], [_INDEX, shards[0]], ["pytorch_model.bin"], []), 1):
        loaded = LlamaForCausalLM.from_pretrained(tmp_path).state_dict()[name]
        assert loaded.tolist() == [value] * 4
        with _open(tmp_path) as checkpoint:
            tensor = next(tensor for tensor in checkpoint.tensors if tensor.name == name)
            data = read_range(checkpoint.files[tensor.file], tensor.offset, tensor.nbytes)
            assert np.frombuffer(data, np.float32).tolist() == loaded.tolist()
        for file in removed:
            (tmp_path / file).unlink()


# Components.


def _encoder(folder: Path, main_folder: str = "", pickled: bool = False) -> None:
    """A sentence encoder with a dense layer in a folder, one weight of which overflows fp16."""
    _save(folder / main_folder / "model.safetensors", "embeddings.weight", length=64)
    (folder / main_folder / "config.json").write_text('{"model_type": "bert"}')
    modules = {main_folder: "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense"}
    entries = [{"idx": at, "path": path, "type": f"sentence_transformers.models.{kind}"} for at, (path, kind) in enumerate(modules.items())]
    (folder / "modules.json").write_text(json.dumps(entries))
    (folder / "2_Dense").mkdir()
    if pickled:
        torch.save({"linear.weight": torch.full((4, 4), 1e5)}, folder / "2_Dense/pytorch_model.bin")
    else:
        save_file({"linear.weight": np.full((4, 4), 1e5, np.float32)}, folder / "2_Dense/model.safetensors")


@pytest.mark.parametrize(("main_folder", "pickled"), [("", False), ("0_Transformer", True)])
def test_the_modules_of_a_sentence_encoder_are_read_together(
    main_folder: str, pickled: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _encoder(tmp_path, main_folder, pickled)
    with _open(tmp_path) as checkpoint:
        assert [tensor.name for tensor in checkpoint.tensors] == ["2_Dense/linear.weight", "embeddings.weight"]
        assert checkpoint.config == {"model_type": "bert"}
        assert checkpoint.not_read == ()
    assert main(["dtype", str(tmp_path), "--exact"]) == 0
    assert "80 weights tested" in (out := capsys.readouterr().out) and "Do not run it in fp16" in out


# Files that no index names.


# GGUF.


def test_a_part_of_a_gguf_file_brings_the_others(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        written(tmp_path / f"m-{number:05d}-of-00003.gguf", {f"t{number}": (np.ones(4, np.float32), None)})
    with _open(tmp_path / "m-00002-of-00003.gguf") as checkpoint:
        assert [tensor.name for tensor in checkpoint.tensors] == ["t1", "t2", "t3"]
        assert not checkpoint.notes
    (tmp_path / "m-00003-of-00003.gguf").unlink()
    (tmp_path / "m-00001-of-00003.gguf").unlink()
    with _open(tmp_path / "m-00002-of-00003.gguf") as checkpoint:
        assert [tensor.name for tensor in checkpoint.tensors] == ["t2"]
        assert [(each.path, each.code) for each in checkpoint.not_read] == [(f"m-0000{n}-of-00003.gguf", "outside") for n in (1, 3)]
    with pytest.raises(InvalidCheckpoint, match=r'"m-00001-of-00003\.gguf" is missing'):
        _open(tmp_path)


def test_a_gguf_part_of_absurdly_many_is_read_alone(tmp_path: Path) -> None:
    written(tmp_path / "m-000002-of-999999.gguf", {"t": (np.ones(4, np.float32), None)})
    with _open(tmp_path / "m-000002-of-999999.gguf") as checkpoint:
        assert len(checkpoint.tensors) == 1


# Cut files.


@pytest.mark.parametrize("name", ["model.safetensors", "model.gguf", "pytorch_model.bin"])
def test_a_cut_file_is_refused(name: str, tmp_path: Path) -> None:
    if name.endswith(".gguf"):
        written(tmp_path / name, {"a": (np.ones(1_024, np.float32), None)})
    elif name.endswith(".bin"):
        torch.save({"a": torch.ones(1_024)}, tmp_path / name)
    else:
        _save(tmp_path / name, "a", length=1_024)
    data = (tmp_path / name).read_bytes()
    for length in (60, 3_000, len(data) - 234, len(data) - 1):
        (tmp_path / name).write_bytes(data[:length])
        with pytest.raises(InvalidCheckpoint, match=f'^"{name}" is cut off'):
            _open(tmp_path)


# Scaled fp8, as image models store it.


def test_tensor_wise_fp8_with_activation_scales_and_a_marker(tmp_path: Path) -> None:
    prefix = "double_blocks.0.img_attn.qkv."
    state = {f"{prefix}weight": torch.full((8, 8), 2.0).to(torch.float8_e4m3fn), f"{prefix}scale_weight": torch.tensor([0.25])}
    state |= {f"{prefix}scale_input": torch.tensor([1.0]), "scaled_fp8": torch.zeros(2, dtype=torch.float8_e4m3fn)}
    save_torch(state, tmp_path / "fp8.safetensors")
    with _open(tmp_path) as checkpoint:
        found = {tensor.name: tensor for tensor in checkpoint.tensors}
        assert checkpoint.parameters == 64
        assert found[f"{prefix}weight"].stored is not None
        assert found[f"{prefix}scale_input"].holds_scales and found[f"{prefix}scale_weight"].holds_scales
        assert found["scaled_fp8"].buffer


def test_an_importance_matrix_is_refused_by_its_content(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_type("imatrix")
    writer.add_tensor("blk.0.attn_q.weight.in_sum2", np.ones(32, np.float32))
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        write()
    with pytest.raises(UnsupportedWeights, match="is an importance matrix, statistics for quantization without weights"):
        _open(tmp_path / "m.gguf")
