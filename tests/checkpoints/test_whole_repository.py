"""Every file of a repository that may hold weights is read, or listed as not read with the reason."""

import json
import pickle
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from safetensors.numpy import save, save_file
from safetensors.torch import save_file as save_torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.trainer_utils import get_last_checkpoint

from analyzers import limits
from analyzers.__main__ import main
from analyzers.checkpoints import Access, Checkpoint, is_weights, open_checkpoint, read_range
from analyzers.checkpoints.weight_files.other_formats import other_format
from analyzers.checkpoints.weight_files.selection import SkippedFile, WeightFiles, select_weights
from analyzers.errors import InvalidCheckpoint, LimitExceeded, NoWeights, UnsupportedWeights
from tests.cases import few
from tests.checkpoints.test_gguf_header import written
from tests.hub import LocalHub

_PAIR = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
_INDEX = "model.safetensors.index.json"


def _open(path: str | Path) -> Checkpoint:
    return open_checkpoint(str(path), Access(local=True))


def _save(path: Path, *names: str, length: int = 3) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: np.ones(length, np.float32) for name in names}, path)


def _selected(paths: str, **small: Any) -> WeightFiles:
    """The selection among ``paths`` (words). small: contents of JSON files, by the first letters of their names."""

    def read_small(path: str) -> bytes:
        content = next(value for key, value in small.items() if path.rpartition("/")[2].startswith(key))
        return content if isinstance(content, bytes) else json.dumps(content).encode()

    return select_weights(dict.fromkeys(paths.split(), 100), read_small)


def _index_of(shards: Mapping[str, str]) -> dict[str, Any]:
    return {"weight_map": dict(shards)}


def _sharded(folder: Path) -> None:
    for number, name in enumerate(_PAIR):
        _save(folder / name, f"layers.{number}.weight")
    (folder / _INDEX).write_text(json.dumps(_index_of({f"layers.{number}.weight": name for number, name in enumerate(_PAIR)})))


ALTERNATIVE, MISSED = True, False


@pytest.mark.parametrize(
    ("paths", "alternative", "why"),
    [
        ("model.safetensors *pytorch_model.bin", ALTERNATIVE, "as a pickle"),
        ("model.safetensors *pytorch_model-00001-of-00002.bin *pytorch_model-00002-of-00002.bin", ALTERNATIVE, "as a pickle"),
        ("x.safetensors *x.ckpt", ALTERNATIVE, "as a pickle"),
        ("model.safetensors *model.fp16.safetensors", ALTERNATIVE, "precision variant"),
        ("model.safetensors *model.fp16-00001-of-00002.safetensors", ALTERNATIVE, "precision variant"),
        ("model.safetensors *model_fp8_e4m3fn.safetensors", ALTERNATIVE, "precision variant"),
        ("model.safetensors *pytorch_model.fp16.bin", ALTERNATIVE, "precision variant"),
        ("model.safetensors *consolidated.safetensors", ALTERNATIVE, "consolidated copy"),
        ("model.safetensors *consolidated.00.pth", ALTERNATIVE, "consolidated copy"),
        ("model.safetensors *model-00001-of-00002.safetensors", ALTERNATIVE, "other files"),
        ("model.safetensors *original/consolidated.00.pth", ALTERNATIVE, "by the folder's name"),
        ("model.safetensors *onnx/model.safetensors", ALTERNATIVE, "by the folder's name"),
        ("model.safetensors *m-Q4_K_M.gguf", ALTERNATIVE, "as GGUF"),
        ("m-F16.gguf *m-Q4_K_M.gguf *Q8/m.i1-Q8_0.gguf *m-IQ2_XXS.gguf *m-UD-Q4_K_XL.gguf", ALTERNATIVE, "as GGUF"),
        ("m-F16.gguf *m-BF16-00001-of-00002.gguf", ALTERNATIVE, "as GGUF"),
        ("model.safetensors *tf_model.h5", ALTERNATIVE, "TensorFlow"),
        ("model.safetensors *flax_model.msgpack", ALTERNATIVE, "Flax"),
        ("model.safetensors *onnx/model.onnx *onnx/model.onnx_data", ALTERNATIVE, "ONNX"),
        ("model.safetensors *openvino_model.bin", ALTERNATIVE, "OpenVINO"),
        ("model.safetensors *m.mlpackage/Data/com.apple.CoreML/weights/weight.bin", ALTERNATIVE, "Core ML"),
        ("model.safetensors *rust_model.ot", ALTERNATIVE, "Rust"),
        ("model.safetensors *global_step5/mp_rank_00_model_states.pt", ALTERNATIVE, "DeepSpeed"),
        ("model.safetensors *global_step5/zero_pp_rank_0_mp_rank_00_model_states.pt", ALTERNATIVE, "DeepSpeed ZeRO"),
        ("model.safetensors *global_step5/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", ALTERNATIVE, "zero_to_fp32.py"),
        ("global_step5/mp_rank_00_model_states.pt *global_step5/zero_pp_rank_0_mp_rank_00_optim_states.pt", ALTERNATIVE, "zero_to_fp32.py"),
        ("m-F16.gguf *m.imatrix.gguf *imatrix.gguf *imatrix_unsloth.dat", ALTERNATIVE, "an importance matrix"),
        ("model.safetensors *model.tar.gz *weights.zip", MISSED, "an archive: unpack it"),
        ("model.safetensors *weights.npy", MISSED, "NumPy array"),
        ("run/final/model.safetensors *run/checkpoint-100/model.safetensors", MISSED, "another checkpoint of the training"),
        ("checkpoint-1000/model.safetensors *checkpoint-100/model.safetensors *checkpoint-200/model.safetensors", MISSED, "another check"),
        ("out/step_20/a.pt *out/step_3/a.pt", MISSED, "another checkpoint of the training"),
        ("model.safetensors *adapter_model.safetensors", MISSED, "an adapter"),
        ("model.safetensors adapter_config.json *adapter_model.safetensors", MISSED, "which transformers loads on top of these weights"),
        ("model.safetensors *my-lora.safetensors", MISSED, "an adapter by its name"),
        ("adapter_model.safetensors *pytorch_model.bin", MISSED, "next to the files"),
        ("adapter_model.safetensors *tf_model.h5", MISSED, "TensorFlow"),
        ("adapter_model.safetensors adapter_config.json *adapter_model.bin", ALTERNATIVE, "as a pickle"),
        ("model.safetensors *2_Dense/model.safetensors", MISSED, "in a folder that is not part of the model"),
        ("model.safetensors *tf_head/model.safetensors", MISSED, "in a folder that is not part of the model"),
        ("model.safetensors *checkpoint-500/model.safetensors", MISSED, "another checkpoint of the training"),
        ("model.safetensors *mtp.safetensors", MISSED, "next to the files"),
        ("model.safetensors *extra.bin", MISSED, "next to the files"),
        ("model.safetensors *dist/__0_0.distcp", MISSED, "dcp_to_torch"),
        ("model.safetensors *weights.npz", MISSED, "NumPy archive"),
        ("m-f16.gguf *mmproj-m-f32.gguf", MISSED, "another part of the model"),
        ("m-f16.gguf *other-f16.gguf", MISSED, "another model"),
        ("m-f16.gguf *lora-f16.gguf", MISSED, "an adapter"),
        ("pytorch_model-00001-of-00001.bin pytorch_model.bin.index.json *extra.bin", MISSED, "no index names it"),
        ("a/model.safetensors *model.ckpt", MISSED, "in a folder that is not part"),
    ],
)
def test_what_is_not_read_is_listed_with_the_reason(paths: str, alternative: bool, why: str) -> None:
    found = _selected(paths.replace("*", ""), pytorch_model=_index_of({"a": "pytorch_model-00001-of-00001.bin"}))
    assert [each.path for each in found.not_read] == sorted(path.lstrip("*") for path in paths.split() if path.startswith("*"))
    for each in found.not_read:
        assert each.alternative is alternative
        assert why in each.why
        assert "same weights" not in each.why or ("name" in each.why and each.why.endswith("not compared"))
        assert not each.why.endswith(".")
    assert any(note.startswith("Not read: ") for note in found.notes)


@pytest.mark.parametrize(
    "path",
    ["optimizer.pt", "optimizer_0/__0_0.distcp", "scheduler.pt", "rng_state_0.pth", "training_args.bin",
     "vocab.pkl", "random_states_0.pkl", "tokenizer.zip", "label.npy", "scaler.joblib", "README.md", "tokenizer.model"],
)  # fmt: skip
def test_training_state_and_other_files_are_not_listed(path: str) -> None:
    found = _selected(f"model.safetensors {path}")
    assert not found.not_read and not found.notes


def test_every_file_is_read_or_listed() -> None:
    names = ["model", "pytorch_model", "x", "x.fp16", "consolidated", "m-Q4_0", "optimizer", "tf_model", "model-00001-of-00002", "imatrix"]
    endings = ["safetensors", "sft", "bin", "pt", "ckpt", "gguf", "h5", "msgpack", "onnx", "npz", "distcp", "safetensors.index.json", "txt"]
    paths = [f"{folder}{name}.{ending}" for folder in ("", "a/", "onnx/", "a/b/") for name in names for ending in endings]
    found = _selected(" ".join(paths), model=_index_of(dict(zip("ab", _PAIR, strict=True))))
    listed = {*found.paths, *found.outside, *(each.path for each in found.not_read)}
    assert len(found.paths) == 1
    assert listed == {path for path in paths if is_weights(path) or other_format(path)}
    assert len(found.paths) + len(found.outside) + len(found.not_read) == len(listed)


def test_transformers_loads_the_single_file_and_vllm_the_shards_of_an_index() -> None:
    shards = _index_of(dict(zip("ab", _PAIR, strict=True)))
    found = _selected(f"model.safetensors {_INDEX} {' '.join(_PAIR)}", model=shards)
    assert found.paths == ("model.safetensors",)
    assert [each.alternative for each in found.not_read] == [True, True]
    assert (
        'transformers loads "model.safetensors"; vLLM takes the 2 shards that "model.safetensors.index.json" names.',
        f'Not read: "{_PAIR[0]}" and "{_PAIR[1]}", by name the same weights in other files, not compared.',
    ) == found.notes
    assert any("vLLM also loads the 2 shards next to it" in note for note in _selected(f"model.safetensors {' '.join(_PAIR)}").notes)
    assert _selected(f"model.safetensors {_INDEX}", model=_index_of({"a": "model.safetensors"})).notes == ()


@pytest.mark.parametrize(
    "index", [b"{", {"weight_map": {"a": "../x.safetensors"}}, {"weight_map": {"a": "model-00001-of-00009.safetensors"}}]
)
def test_an_index_that_cannot_be_used_next_to_a_single_file_is_noted(index: Any) -> None:
    found = _selected(f"model.safetensors {_INDEX}", model=index)
    assert found.paths == ("model.safetensors",)
    assert "loaders that prefer the index next to it fail" in found.notes[0] and "The checkpoint is incomplete" not in found.notes[0]


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


@pytest.mark.parametrize("other", ["ema.safetensors", "weights.safetensors", "consolidated.safetensors"])
def test_a_pickle_that_transformers_finds_comes_before_safetensors_that_it_does_not(other: str) -> None:
    assert _selected(f"config.json pytorch_model.bin {other}").paths == ("pytorch_model.bin",)
    assert _selected(f"config.json model.safetensors pytorch_model.bin {other}").paths == ("model.safetensors",)
    assert _selected(f"config.json {other}").paths == (other,)


def test_a_stale_index_names_the_set_that_is_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, name in enumerate(_PAIR):
        _save(tmp_path / name, f"layers.{number}.weight")
    (tmp_path / _INDEX).write_text(json.dumps(_index_of({f"x{at}": f"model-{at:05d}-of-00004.safetensors" for at in range(1, 5)})))
    said = (
        'The index is stale: it names "model-00001-of-00004.safetensors" and 3 more, which are missing, while '
        '"model-00001-of-00002.safetensors" and its 1 other shard are a complete model: delete or rebuild the index.'
    )
    assert main(["dtype", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"error: {said}\n"


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


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("main_folder", ["", "0_Transformer"])
def test_the_modules_of_a_sentence_encoder_are_read_together(
    main_folder: str, pickled: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _encoder(tmp_path, main_folder, pickled)
    with _open(tmp_path) as checkpoint:
        assert [tensor.name for tensor in checkpoint.tensors] == ["2_Dense/linear.weight", "embeddings.weight"]
        assert checkpoint.config == {"model_type": "bert"}
        assert checkpoint.not_read == ()
    assert main(["dtype", str(tmp_path), "--exact"]) == 0
    assert "80 parameters" in (out := capsys.readouterr().out) and "Do not run it in fp16" in out


def test_modules_on_the_hub(hub: LocalHub) -> None:
    dense = save({"linear.weight": np.ones((4, 4), np.float32)})
    modules = json.dumps([{"path": ""}, {"path": "2_Dense"}]).encode()
    hub.add("org/encoder", {"model.safetensors": save({"a": np.ones(3, np.float32)}), "2_Dense/model.safetensors": dense,
                            "modules.json": modules, "onnx/model.onnx": b"x", "3_Dense/model.safetensors": dense})  # fmt: skip
    with open_checkpoint("org/encoder", Access()) as checkpoint:
        assert {tensor.name for tensor in checkpoint.tensors} == {"a", "2_Dense/linear.weight"}
        assert [(each.path, each.alternative) for each in checkpoint.not_read] == [
            ("3_Dense/model.safetensors", False), ("onnx/model.onnx", True)]  # fmt: skip
        assert "in a folder that modules.json does not name" in checkpoint.not_read[0].why


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is damaged and was ignored"),
        (b"[" * 100_000, "nested more than 100 levels deep and was ignored"),
        (b"\xff", "is damaged and was ignored"),
        ({"path": "2_Dense"}, "is damaged and was ignored"),
        ([{"path": "../2_Dense"}], r'names "\.\./2_Dense", which is not a folder of this checkpoint'),
        ([{"path": "2_Dense"}, {"path": "/etc"}], r'names "/etc", which is not a folder'),
        ([{"path": "2_Dense\n"}], "which is not a folder"),
        ([{"path": "a\\b"}], "which is not a folder"),
        ([{"path": "2_Dense/../.."}], "which is not a folder"),
    ],
)
def test_modules_json_that_cannot_be_used_is_ignored_in_one_sentence(content: Any, said: str) -> None:
    found = _selected("model.safetensors modules.json 2_Dense/model.safetensors", modules=content)
    assert found.paths == ("model.safetensors",)
    assert [each.path for each in found.not_read] == ["2_Dense/model.safetensors"]
    assert len(found.notes) == 2
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(found.notes[0])


@pytest.mark.exhaustive
def test_modules_json_of_a_million_entries_is_not_parsed() -> None:
    content = json.dumps([{"path": str(at)} for at in range(1_000_000)]).encode()
    files = {"model.safetensors": 1, "modules.json": len(content)}
    found = select_weights(files, lambda _: content)
    assert "more than 1,000,000 bytes" in found.notes[0]
    assert len(found.notes) == 1
    many = select_weights(dict.fromkeys(files, 1), lambda _: b"[" + b"{}," * 300_000 + b'{"path": "x"}, 3, null, {"path": 3}]')
    assert many.paths == ("model.safetensors",) and many.notes == ()


def test_the_modules_inside_a_router_are_read_too() -> None:
    folders = ["query_0_Static", "document_0_Transformer", "2_Dense", "x"]
    paths = " ".join(["modules.json", *(f"{folder}/model.safetensors" for folder in folders)])
    modules = [
        {"path": "", "type": "sentence_transformers.models.Router"},
        {"path": "2_Dense", "type": "sentence_transformers.models.Dense"},
    ]
    found = _selected(paths, modules=modules)
    assert [each.folder for each in found.sets] == ["document_0_Transformer", "query_0_Static", "2_Dense"]
    assert [each.path for each in found.not_read] == ["x/model.safetensors"]


_PIPELINE = {
    "_class_name": "Pipeline",
    "unet": ["diffusers", "UNet"],
    "vae": ["diffusers", "AutoencoderKL"],
    "safety_checker": [None, None],
    "scheduler": ["diffusers", "Scheduler"],
    "force_zeros": True,
}


def test_single_files_next_to_a_pipeline_are_alternatives() -> None:
    paths = "model_index.json sd.safetensors sd.ckpt unet/x.safetensors unet/x.bin vae/x.safetensors vae_1_0/x.safetensors scheduler/x.json"
    found = _selected(paths, model_index=_PIPELINE)
    assert found.paths == ("unet/x.safetensors", "vae/x.safetensors")
    assert [(each.path, each.alternative) for each in found.not_read] == [
        ("sd.ckpt", True), ("sd.safetensors", True), ("unet/x.bin", True), ("vae_1_0/x.safetensors", False)]  # fmt: skip
    assert [each.prefix for each in found.sets] == ["unet/", "vae/"]
    part = _selected("model_index.json sd.safetensors vae/x.safetensors", model_index=_PIPELINE)
    assert [(each.path, each.alternative) for each in part.not_read] == [("sd.safetensors", False), ("unet", False)]
    assert _selected("model_index.json sd.safetensors unet/config.json", model_index=_PIPELINE).paths == ("sd.safetensors",)


# Files that no index names.


def test_a_file_outside_the_index_is_read_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _sharded(tmp_path)
    mtp = {"mtp.fc.weight": torch.ones(8), "mtp.norm.weight": torch.full((128,), torch.nan)}
    save_torch(mtp, tmp_path / "model-mtp.safetensors")
    said = 'The index does not name "model-mtp.safetensors": transformers does not load it; it was read all the same.'
    with _open(tmp_path) as checkpoint:
        assert checkpoint.outside_index == ("model-mtp.safetensors",)
        assert {tensor.name for tensor in checkpoint.tensors} == {
            "layers.0.weight", "layers.1.weight", "model-mtp/mtp.fc.weight", "model-mtp/mtp.norm.weight"}  # fmt: skip
        assert checkpoint.notes == (said,)
        assert checkpoint.not_read == ()
        assert checkpoint.parameters == 142
    assert main(["check", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert said in out and "128 NaN in 1 tensor" in out
    target = tmp_path.with_name("shrunk")
    torch.save({"x": torch.ones(2)}, tmp_path / "x.pt")  # not read
    assert main(["shrink", str(tmp_path), "--out", str(target)]) == 0
    with _open(target) as shrunk:
        assert shrunk.outside_index == ("model-mtp.safetensors",)
        assert [tensor.name for tensor in shrunk.tensors] == [tensor.name for tensor in checkpoint.tensors]


def test_a_file_outside_the_index_with_names_of_the_set_is_not_read(tmp_path: Path) -> None:
    _sharded(tmp_path)
    _save(tmp_path / "copy.safetensors", "layers.0.weight")
    _save(tmp_path / "half.safetensors", "layers.0.weight", "mtp.weight")
    _save(tmp_path / "adapter_model.safetensors", "lora")
    _save(tmp_path / "model.fp16-00001-of-00001.safetensors", "layers.0.weight")
    (tmp_path / "cut.safetensors").write_bytes(b"\x80")
    (tmp_path / "empty.safetensors").write_bytes(save({}))
    with _open(tmp_path) as checkpoint:
        assert len(checkpoint.tensors) == 2 and checkpoint.outside_index == ()
        found = {each.path: each for each in checkpoint.not_read}
    assert {path: each.alternative for path, each in found.items()} == {
        "adapter_model.safetensors": False, "copy.safetensors": True, "cut.safetensors": False, "empty.safetensors": True,
        "half.safetensors": False, "model.fp16-00001-of-00001.safetensors": True}  # fmt: skip
    assert 'no index names it, and it cannot be read: "cut.safetensors" is cut off' in found["cut.safetensors"].why
    assert "of the same names" in found["half.safetensors"].why


def test_a_file_outside_the_index_on_the_hub(hub: LocalHub, tmp_path: Path) -> None:
    _sharded(tmp_path)
    _save(tmp_path / "mtp.safetensors", "mtp.weight")
    _save(tmp_path / "copy.safetensors", "layers.0.weight")
    hub.add("org/model", {path.name: path.read_bytes() for path in tmp_path.iterdir()})
    with open_checkpoint("org/model", Access()) as checkpoint:
        assert checkpoint.outside_index == ("mtp.safetensors",)
        assert [(each.path, each.alternative) for each in checkpoint.not_read] == [("copy.safetensors", True)]


def test_many_files_outside_the_index(tmp_path: Path) -> None:
    _sharded(tmp_path)
    for number in range(103):
        _save(tmp_path / f"x{number}.safetensors", f"t{number}")
    with _open(tmp_path) as checkpoint:
        assert len(checkpoint.outside_index) == 100 and len(checkpoint.not_read) == 3
        assert "and 95 more files: transformers does not load them; they were read all the same." in " ".join(checkpoint.notes)


def test_names_that_two_sets_would_share_are_refused(tmp_path: Path) -> None:
    _sharded(tmp_path)
    _save(tmp_path / "model-00002-of-00002.safetensors", "layers.1.weight", "x/y")
    _save(tmp_path / "x.safetensors", "y")
    with pytest.raises(InvalidCheckpoint, match='the tensor "x/y" is in two of its folders or files'):
        _open(tmp_path)


# GGUF.


def test_a_part_of_a_gguf_file_brings_the_others(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        written(tmp_path / f"m-{number:05d}-of-00003.gguf", {f"t{number}": (np.ones(4, np.float32), None)})
    with _open(tmp_path / "m-00002-of-00003.gguf") as checkpoint:
        assert [tensor.name for tensor in checkpoint.tensors] == ["t1", "t2", "t3"]
        assert "The GGUF file has 3 parts, which were read together." in checkpoint.notes
    (tmp_path / "m-00003-of-00003.gguf").unlink()
    (tmp_path / "m-00001-of-00003.gguf").unlink()
    with _open(tmp_path / "m-00002-of-00003.gguf") as checkpoint:
        assert [tensor.name for tensor in checkpoint.tensors] == ["t2"]
        assert 'has 3 parts, and "m-00001-of-00003.gguf" and 1 more of them are missing' in checkpoint.notes[0]
        assert checkpoint.not_read == tuple(
            SkippedFile(f"m-0000{number}-of-00003.gguf", "a part of the GGUF file, and missing") for number in (1, 3)
        )
    with pytest.raises(InvalidCheckpoint, match=r'"m-00001-of-00003\.gguf" and 1 more of 3 weight files missing'):
        _open(tmp_path)


def test_a_gguf_part_of_absurdly_many_is_read_alone(tmp_path: Path) -> None:
    written(tmp_path / "m-000002-of-999999.gguf", {"t": (np.ones(4, np.float32), None)})
    with _open(tmp_path / "m-000002-of-999999.gguf") as checkpoint:
        assert len(checkpoint.tensors) == 1


def test_a_shard_named_alone_is_read_alone(tmp_path: Path) -> None:
    _sharded(tmp_path)
    with _open(tmp_path / _PAIR[0]) as checkpoint:
        assert len(checkpoint.tensors) == 1
        assert checkpoint.notes == (f'"{_PAIR[0]}" is shard 1 of 2: it was named alone, and read alone.',)


def test_sft_is_safetensors(tmp_path: Path) -> None:
    _save(tmp_path / "ae.sft", "a")
    for path in (tmp_path, tmp_path / "ae.sft"):
        with _open(path) as checkpoint:
            assert checkpoint.parameters == 3


# Cut files.


@pytest.mark.parametrize("name", ["model.safetensors", "model.gguf"])
def test_a_cut_file_says_how_many_bytes_are_missing(name: str, tmp_path: Path) -> None:
    if name.endswith(".gguf"):
        written(tmp_path / name, {"a": (np.ones(1_024, np.float32), None)})
    else:
        _save(tmp_path / name, "a", length=1_000)
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data[:-234])
    said = f'^"{name}" is cut off: its tensors need {len(data):,} bytes and {len(data) - 234:,} are there: 234 are missing. Upload or'
    with pytest.raises(InvalidCheckpoint, match=said):
        _open(tmp_path)
    (tmp_path / name).write_bytes(data[:60])
    with pytest.raises(
        InvalidCheckpoint, match=r"is cut off: its header alone needs at least .* bytes and 60 are there: at least [0-9]+ are missing"
    ):
        _open(tmp_path)


def test_a_cut_pickle_says_how_many_bytes_are_missing_at_least(tmp_path: Path) -> None:
    file = tmp_path / "pytorch_model.bin"
    torch.save({"a": torch.ones(10_000), "b": torch.ones(50, 50)}, file)
    data = file.read_bytes()
    file.write_bytes(data[:30_000])
    with pytest.raises(
        InvalidCheckpoint,
        match=r'^"pytorch_model\.bin" is cut off: its zip directory is missing, and its tensors need at '
        r"least 50,\d{3} bytes and 30,000 are there: at least 20,\d{3} are missing",
    ):
        _open(tmp_path)
    for length in (10, 29, 100, len(data) - 1):
        file.write_bytes(data[:length])
        with pytest.raises(InvalidCheckpoint, match=r"is cut off after .* the zip directory at its end is missing"):
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
        assert found[f"{prefix}weight"].scale is not None
        assert found[f"{prefix}scale_input"].holds_scales and found[f"{prefix}scale_weight"].holds_scales
        assert found["scaled_fp8"].buffer


# Hostile repositories.


@pytest.mark.parametrize("many", few([100_000, 20_000], {1}))
def test_very_many_files_are_sorted_in_bounded_time(many: int) -> None:
    kinds = ("model.fp16-00001-of-00002.safetensors", "x.fp16.safetensors", "tf.h5", "y.bin", "z-Q4_K.gguf")
    files = {f"{'d/' * (at % 3)}{at}-{kinds[at % 5]}": at for at in range(many)}
    start = time.process_time()
    found = select_weights({"model.safetensors": 1, **files}, lambda _: b"")
    assert len(found.paths) == 1 and len(found.not_read) == many
    assert sum(map(len, found.notes)) < 5_000
    assert time.process_time() - start < 60
    parts = {f"{at}-00001-of-05000.safetensors": at for at in range(many // 2)}
    assert len(select_weights({"model.safetensors": 1, **parts}, lambda _: b"").not_read) == many // 2
    folders = {f"{at}/{at}.safetensors": at for at in range(many)}
    with pytest.raises(LimitExceeded, match="more than"):
        select_weights(folders, lambda _: b"")
    routers = [{"path": str(at), "type": ".Router"} for at in range(max(6_000, many // 5))]
    with pytest.raises(LimitExceeded, match="more than"):
        select_weights({"modules.json": 1, **folders}, lambda _: json.dumps(routers).encode())
    assert time.process_time() - start < 90


def test_names_with_line_breaks_are_printable() -> None:
    found = select_weights({"model.safetensors": 1, "a\nb\x1b[31m.safetensors": 1, "x\n.h5": 1}, lambda _: b"")
    assert [each.path for each in found.not_read] == ["a<U+000A>b<U+001B>[31m.safetensors", "x<U+000A>.h5"]
    assert all(note.isprintable() for note in found.notes)


def test_components_are_bounded_by_the_number_of_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SHARDS", 2)
    with pytest.raises(LimitExceeded, match="more than"):
        _selected("modules.json a/x.bin b/x.bin c/x.bin", modules=[{"path": name} for name in "abc"])


# Weights under names that do not say so, and folders that are not what they are named as.


def test_of_several_training_steps_the_one_that_the_trainer_resumes_is_read(tmp_path: Path) -> None:
    for number in (90, 1000, 200):
        _save(tmp_path / f"checkpoint-{number}" / "model.safetensors", "a")
        (tmp_path / f"checkpoint-{number}" / "config.json").write_text(json.dumps({"step": number}))
    last = get_last_checkpoint(str(tmp_path))  # type: ignore[no-untyped-call]
    with _open(tmp_path) as checkpoint:
        assert last is not None and [str(tmp_path / file.path) for file in checkpoint.files] == [f"{last}/model.safetensors"]
        assert checkpoint.config == {"step": 1000} and [tensor.name for tensor in checkpoint.tensors] == ["a"]
        assert 'Of 3 checkpoints of a training, the last was read, "checkpoint-1000"' in checkpoint.notes[0]
    with open_checkpoint(str(tmp_path), Access(local=True), subfolder="checkpoint-90") as checkpoint:
        assert checkpoint.config == {"step": 90}


_TORCH_NAMES = (
    "ema.pth.tar", "w.pkl", "vocab_model.th", "tokens.vec", "weights.db", "model.index", "tokenizer.jit", "optimus_weights", "best.lock",
    "readme_weights", "embedding.db",
)  # fmt: skip


def test_weights_are_recognized_by_content(tmp_path: Path) -> None:
    _save(tmp_path / "model.safetensors", "a")
    _save(tmp_path / "sub" / "model", "a")
    for name in _TORCH_NAMES:
        torch.save({"a": torch.ones(3)}, tmp_path / name)
    (tmp_path / "plain.pkl").write_bytes(pickle.dumps({"a": [1.0]}))
    (tmp_path / "compiled.nbc").write_bytes(pickle.dumps({"a": [1.0]}))
    (tmp_path / "scaler.pkl").write_bytes(pickle.dumps({"a": [1.0]}))
    torch.save({"a": torch.ones(3)}, tmp_path / "earliest", _use_new_zipfile_serialization=False, pickle_protocol=0)
    large = bytes(range(256)) * 4096
    for name in ("params.dat", "tokenizer.model", "spm.model", "events.out.tfevents.1", "picture.png", "data.parquet", "words.db"):
        (tmp_path / name).write_bytes(large)
    for name in ("small.dat", "LICENSE", "empty"):
        (tmp_path / name).write_bytes(b"\0" * len(name) if name != "empty" else b"")
    with _open(tmp_path) as checkpoint:
        whys = {each.path: each.why for each in checkpoint.not_read}
        assert [file.path for file in checkpoint.files] == ["model.safetensors"]
    assert set(whys) == {"sub/model", "params.dat", "plain.pkl", "compiled.nbc", "earliest", *_TORCH_NAMES}
    assert "a safetensors file by its content" in whys["sub/model"] and "a PyTorch file by its content" in whys["earliest"]
    assert all("a PyTorch file or another zip archive by its content" in whys[name] for name in _TORCH_NAMES)
    assert all("a pickle of an unknown kind" in whys[name] for name in ("plain.pkl", "compiled.nbc"))
    assert "large enough to hold weights" in whys["params.dat"]
    with _open(tmp_path / "sub" / "model") as checkpoint:
        assert len(checkpoint.tensors) == 1
    with pytest.raises(NoWeights, match='"model", a safetensors file by its content'):
        _open(tmp_path / "sub")


def test_unknown_files_of_a_large_repository_are_not_all_opened(tmp_path: Path) -> None:
    _save(tmp_path / "model.safetensors", "a")
    for number in range(100):
        (tmp_path / f"x{number}").write_bytes(b"\x80\x02" + bytes(number))
    with _open(tmp_path) as checkpoint:
        assert len(checkpoint.not_read) == 32


def test_hidden_folders_with_weights_are_named(tmp_path: Path) -> None:
    _save(tmp_path / "model.safetensors", "a")
    for folder in (".cache", ".cache/huggingface/download", ".git/annex", ".old/deep"):
        _save(tmp_path / folder / "c.safetensors", "a")
    (tmp_path / ".config").mkdir()
    with _open(tmp_path) as checkpoint:
        assert [each.path for each in checkpoint.not_read] == [".cache/c.safetensors", ".old/deep/c.safetensors"]
        assert 'Not read: ".cache/c.safetensors" and ".old/deep/c.safetensors", in a hidden folder' in checkpoint.notes[-1]


def test_what_diffusers_does_not_load_of_a_pipeline_is_named(tmp_path: Path) -> None:
    parts = {"unet": ["diffusers", "UNet2DConditionModel"], "image_encoder": ["transformers", "CLIPVisionModel"]}
    others = {"scheduler": ["diffusers", "DDIMScheduler"], "feature_extractor": ["transformers", "CLIPImageProcessor"]}
    (tmp_path / "model_index.json").write_text(json.dumps(parts | others))
    for name in ("unet/diffusion_pytorch_model", "unet/other", "sd"):
        _save(tmp_path / f"{name}.safetensors", "a")
    with _open(tmp_path) as checkpoint:
        assert [file.path for file in checkpoint.files] == ["unet/diffusion_pytorch_model.safetensors"]
        assert {each.path: each.why for each in checkpoint.not_read} == {
            "image_encoder": "named by model_index.json, without weights that are read",
            "sd.safetensors": 'next to the folders of "model_index.json", which are not all there',
            "unet/other.safetensors": "next to the files that make up the model",
        }


def test_modules_without_weights_are_named(tmp_path: Path) -> None:
    _save(tmp_path / "model" / "model.safetensors", "a")
    _save(tmp_path / "elsewhere" / "model.safetensors", "b")
    for name in ("1_Pooling", "2_Dense", "inside"):
        (tmp_path / "model" / name).mkdir()
    (tmp_path / "model" / "3_Dense").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "model" / "latest").symlink_to(tmp_path / "model" / "inside")
    (tmp_path / "model" / "text").symlink_to(Path(__file__).parent)
    _save(tmp_path / "model" / "4_Dense" / "model.safetensors", "c")
    types = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense", "3_Dense": "Dense", "4_Dense": "Dense"}
    entries = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in types.items()]
    (tmp_path / "model" / "modules.json").write_text(json.dumps(entries))
    with _open(tmp_path / "model") as checkpoint:
        assert [file.path for file in checkpoint.files] == ["model.safetensors", "4_Dense/model.safetensors"]
        assert {each.path for each in checkpoint.not_read} == {"2_Dense", "3_Dense"}
        assert any("3_Dense" in each.path and "a link to a folder outside" in each.why for each in checkpoint.not_read)


def test_files_next_to_a_pipeline_that_are_no_copies_of_it(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text(
        json.dumps({"unet": ["diffusers", "UNet2DConditionModel"], "vae": ["diffusers", "AutoencoderKL"]})
    )
    for part in ("unet", "vae"):
        _save(tmp_path / part / "diffusion_pytorch_model.safetensors", "a", length=10_000)
    for name in ("sd", "controlnet", "learned_embeds"):
        _save(tmp_path / f"{name}.safetensors", "a", length=20_000)
    for name in ("pytorch_lora_weights", "style"):
        _save(tmp_path / f"{name}.safetensors", "a", length=100)
    with _open(tmp_path) as checkpoint:
        assert [each.path for each in checkpoint.not_read if each.alternative] == ["sd.safetensors"]
        assert len(checkpoint.not_read) == 5


def test_an_importance_matrix_is_refused_by_its_content(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_type("imatrix")
    writer.add_tensor("blk.0.attn_q.weight.in_sum2", np.ones(32, np.float32))
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        write()
    with pytest.raises(UnsupportedWeights, match="is an importance matrix, statistics for quantization without weights"):
        _open(tmp_path / "m.gguf")


@pytest.mark.parametrize("several", [True, False])
def test_ranks_of_a_parallel_run_are_no_models(several: bool) -> None:
    paths = "global_step5/mp_rank_00_model_states.pt" + " global_step5/mp_rank_01_model_states.pt" * several
    if several:
        with pytest.raises(NoWeights, match="several ranks"):
            _selected(paths)
    else:
        assert _selected(paths).paths == (paths,)
