"""Opened checkpoints: which repository a reference names, which of its files are read, and in which format."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import constants, snapshot_download
from safetensors.torch import save, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from analyzers.__main__ import main
from analyzers.checkpoints import Access, Checkpoint, open_checkpoint, read_range
from analyzers.core.errors import (
    CheckpointNotFound,
    HubUnreachable,
    InvalidCheckpoint,
    InvalidReference,
    MantissaError,
    NoWeights,
    UnsupportedWeights,
)
from analyzers.language_models.samples import sample_folder
from tests.checkpoints.pickles.pickled_files import saved
from tests.checkpoints.test_gguf_header import written
from tests.hub import Fault, LocalHub

OWNER = Access(local=True)
WEIGHTS = {"w": torch.arange(12.0).reshape(3, 4)}
INDEX = "model.safetensors.index.json"


def opened(path: str | Path) -> Checkpoint:
    return open_checkpoint(str(path), OWNER)


@pytest.mark.parametrize("how", ["HF_HUB_OFFLINE", "no network"])
def test_the_hubs_cache_answers_its_owner_where_the_hub_cannot_be_asked(
    how: str, hub: LocalHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = sample_folder("tiny-bf16-as-fp32")
    hub.add("org/model", {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()})
    commit = Path(snapshot_download("org/model")).name
    monkeypatch.setattr("analyzers.checkpoints.hub.replies._BACKOFF_SECONDS", 0.02)
    if how == "HF_HUB_OFFLINE":
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    else:
        hub.fault(Fault("^/api/models/", times=None, garbage=b""))
    for reference in ("org/model", f"org/model@{commit}", "org/model@main"):
        assert main(["dtype", reference, "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        facts = report["checkpoint"]
        assert (facts["ref"], facts["commit"], facts["public"]) == ("org/model", commit, False)
        assert "cached" in [note["code"] for note in report["notes"]]
    with pytest.raises(HubUnreachable, match="cache does not have"):
        open_checkpoint("org/other@main", OWNER)
    with pytest.raises(HubUnreachable):
        open_checkpoint("org/model", Access())  # a visitor of a page


def test_a_bare_path_that_exists_is_a_path_but_not_on_a_page(hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(sample_folder("tiny-bf16"), tmp_path / "models" / "tiny")
    for text in ("models/tiny", "models/tiny/model.safetensors", "../" + tmp_path.name + "/models/tiny"):
        with opened(text) as checkpoint:
            assert checkpoint.ref == str((tmp_path / text).resolve()) and not checkpoint.public
            assert (checkpoint.notes[0].code, checkpoint.notes[0].values) == ("local-path", {"path": text})
    with pytest.raises(CheckpointNotFound, match="not found on the Hub"):
        open_checkpoint("models/tiny", Access())
    with pytest.raises(InvalidReference, match="command line only"):
        open_checkpoint("./models/tiny", Access())
    with pytest.raises(CheckpointNotFound, match="not found on the Hub"):
        opened("models/other")


@pytest.mark.parametrize(
    ("name", "data", "error"),
    [
        ("a.safetensors", save(WEIGHTS), None),
        ("a.sft", save(WEIGHTS), None),
        ("last.ckpt", saved(WEIGHTS), None),
        ("optimizer.pt", saved(WEIGHTS), None),
        ("notes.txt", b"hello", NoWeights),
        ("weights", save(WEIGHTS), NoWeights),
        ("a.safetensors", b"", InvalidCheckpoint),
        ("a.safetensors", (1 << 40).to_bytes(8, "little") + b"{}", InvalidCheckpoint),
        ("a.safetensors", saved(WEIGHTS), InvalidCheckpoint),
        ("a.gguf", saved(WEIGHTS), InvalidCheckpoint),
        ("a.bin", save(WEIGHTS), UnsupportedWeights),
    ],
)
def test_a_file_is_read_in_the_format_of_its_name(name: str, data: bytes, error: type[MantissaError] | None, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    if error is not None:
        with pytest.raises(error):
            opened(tmp_path / name)
        return
    with opened(tmp_path / name) as checkpoint:
        assert [(tensor.name, tensor.dtype, tensor.shape) for tensor in checkpoint.tensors] == [("w", "F32", (3, 4))]


def test_of_several_sets_the_one_that_transformers_loads_is_read(tmp_path: Path) -> None:
    """Each set has its own value; they are removed one after another in the order in which transformers takes them."""
    name = "model.norm.weight"
    config = LlamaConfig(vocab_size=8, hidden_size=4, intermediate_size=4, num_hidden_layers=1, num_attention_heads=1)
    state = LlamaForCausalLM(config).state_dict()
    config.save_pretrained(tmp_path)

    def valued(value: float) -> dict[str, torch.Tensor]:
        return {each: tensor.clone() if each != name else torch.full_like(tensor, value) for each, tensor in state.items()}

    shards = ["x-00001-of-00001.safetensors", "x-00001-of-00001.bin"]
    save_file(valued(1), tmp_path / "model.safetensors", {"format": "pt"})
    save_file(valued(2), tmp_path / shards[0], {"format": "pt"})
    torch.save(valued(3), tmp_path / "pytorch_model.bin")
    torch.save(valued(4), tmp_path / shards[1])
    for index, shard in ((INDEX, shards[0]), ("pytorch_model.bin.index.json", shards[1])):
        (tmp_path / index).write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(state, shard)}))
    for value, removed in enumerate((["model.safetensors"], [INDEX, shards[0]], ["pytorch_model.bin"], []), 1):
        assert LlamaForCausalLM.from_pretrained(tmp_path).state_dict()[name].tolist() == [value] * 4
        with opened(tmp_path) as checkpoint:
            tensor = next(tensor for tensor in checkpoint.tensors if tensor.name == name)
            data = read_range(checkpoint.files[tensor.file], tensor.offset, tensor.nbytes)
            assert np.frombuffer(data, np.float32).tolist() == [value] * 4
        for file in removed:
            (tmp_path / file).unlink()


@pytest.mark.parametrize("main_folder", ["", "0_Transformer"])
def test_the_modules_of_a_sentence_encoder_are_read_together(main_folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One weight of the dense layer overflows fp16."""
    for folder, state in ((main_folder, {"embeddings.weight": torch.ones(64)}), ("2_Dense", {"linear.weight": torch.full((4, 4), 1e5)})):
        (tmp_path / folder).mkdir(exist_ok=True)
        save_file(state, tmp_path / folder / "model.safetensors")
    (tmp_path / main_folder / "config.json").write_text('{"model_type": "bert"}')
    modules = {main_folder: "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense"}
    (tmp_path / "modules.json").write_text(json.dumps([{"path": path, "type": kind} for path, kind in modules.items()]))
    with opened(tmp_path) as checkpoint:
        assert [tensor.name for tensor in checkpoint.tensors] == ["2_Dense/linear.weight", "embeddings.weight"]
        assert checkpoint.config == {"model_type": "bert"} and checkpoint.not_read == ()
    assert main(["dtype", str(tmp_path), "--exact"]) == 0
    assert "80 weights tested" in (out := capsys.readouterr().out) and "Do not run it in fp16" in out


def test_one_name_in_several_files_is_told_apart(tmp_path: Path) -> None:
    """Of shards, transformers loads the last; other files are other models."""
    for folder, names in (("shards", ("m-00001-of-00002", "m-00002-of-00002")), ("flat", ("x", "y"))):
        (tmp_path / folder).mkdir()
        for name in names:
            save_file({"a": torch.ones(1), "b": torch.ones(2)}, tmp_path / folder / f"{name}.safetensors")
    with opened(tmp_path / "shards") as checkpoint:
        assert [(tensor.name, tensor.file) for tensor in checkpoint.tensors][:2] == [("a", 1), ("b", 1)]
        assert checkpoint.replaced == {"m-00001-of-00002/a": "a", "m-00001-of-00002/b": "b"}
    with opened(tmp_path / "flat") as checkpoint:
        assert sorted(tensor.name for tensor in checkpoint.tensors) == ["x/a", "x/b", "y/a", "y/b"]
    with open_checkpoint(str(tmp_path), OWNER, subfolder="flat") as checkpoint:
        assert len(checkpoint.tensors) == 4
    with pytest.raises(CheckpointNotFound, match="has no folder"):
        open_checkpoint(str(tmp_path / "flat"), OWNER, subfolder="../shards")


def test_a_path_to_a_part_reads_that_part_alone(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        written(tmp_path / f"m-{number:05d}-of-00003.gguf", {f"t{number}": (np.ones(4, np.float32), None)})
    with opened(tmp_path) as checkpoint:
        assert [tensor.name for tensor in checkpoint.tensors] == ["t1", "t2", "t3"] and not checkpoint.notes
    with opened(tmp_path / "m-00002-of-00003.gguf") as checkpoint:
        assert [tensor.name for tensor in checkpoint.tensors] == ["t2"]


@pytest.mark.parametrize("name", ["model.safetensors", "model.gguf", "pytorch_model.bin"])
def test_a_cut_file_is_refused(name: str, tmp_path: Path) -> None:
    state = {"a": torch.ones(1_024)}
    if name.endswith(".gguf"):
        written(tmp_path / name, {"a": (np.ones(1_024, np.float32), None)})
    else:
        (tmp_path / name).write_bytes(saved(state) if name.endswith(".bin") else save(state))
    data = (tmp_path / name).read_bytes()
    for length in (60, 3_000, len(data) - 1):
        (tmp_path / name).write_bytes(data[:length])
        with pytest.raises(InvalidCheckpoint, match=f'^"{name}" is cut off'):
            opened(tmp_path)
