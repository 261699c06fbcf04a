"""Every file of a repository that by its name may hold weights is read, or listed as not read with a code."""

import json
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

from analyzers.__main__ import main
from analyzers.checkpoints import Access, Checkpoint, is_weights, open_checkpoint, read_range
from analyzers.checkpoints.weight_files.not_read import format_of
from analyzers.checkpoints.weight_files.selection import WeightFiles, select_weights
from analyzers.core import limits
from analyzers.core.errors import InvalidCheckpoint, LimitExceeded, NoWeights, UnsupportedWeights
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


@pytest.mark.parametrize(
    ("paths", "code"),
    [
        ("model.safetensors *pytorch_model.bin", "repeats"),
        ("model.safetensors *pytorch_model-00001-of-00002.bin *pytorch_model-00002-of-00002.bin", "repeats"),
        ("x.safetensors *x.ckpt", "repeats"),
        ("model.safetensors *model.fp16.safetensors", "repeats"),
        ("model.safetensors *model.fp16-00001-of-00002.safetensors", "repeats"),
        ("model.safetensors *model_fp8_e4m3fn.safetensors", "repeats"),
        ("model.safetensors *pytorch_model.fp16.bin", "repeats"),
        ("model.safetensors *consolidated.safetensors", "repeats"),
        ("model.safetensors *consolidated.00.pth", "repeats"),
        ("model.safetensors *model-00001-of-00002.safetensors", "repeats"),
        ("model.safetensors *original/consolidated.00.pth", "repeats"),
        ("model.safetensors *onnx/model.safetensors", "repeats"),
        ("model.safetensors *m-Q4_K_M.gguf", "repeats"),
        ("m-F16.gguf *m-Q4_K_M.gguf *Q8/m.i1-Q8_0.gguf *m-IQ2_XXS.gguf *m-UD-Q4_K_XL.gguf", "repeats"),
        ("m-F16.gguf *m-BF16-00001-of-00002.gguf", "repeats"),
        ("model.safetensors *tf_model.h5", "repeats"),
        ("model.safetensors *flax_model.msgpack", "repeats"),
        ("model.safetensors *onnx/model.onnx *onnx/model.onnx_data", "repeats"),
        ("model.safetensors *openvino_model.bin", "repeats"),
        ("model.safetensors *rust_model.ot", "repeats"),
        ("model.safetensors *model.tar.gz *weights.zip", "format"),
        ("model.safetensors *weights.npy", "format"),
        ("model.safetensors *adapter_model.safetensors", "outside"),
        ("model.safetensors adapter_config.json *adapter_model.safetensors", "outside"),
        ("model.safetensors *my-lora.safetensors", "outside"),
        ("adapter_model.safetensors *tf_model.h5", "format"),
        ("adapter_model.safetensors adapter_config.json *adapter_model.bin", "repeats"),
        ("model.safetensors *2_Dense/model.safetensors", "outside"),
        ("model.safetensors *tf_head/model.safetensors", "outside"),
        ("model.safetensors *checkpoint-500/model.safetensors", "outside"),
        ("model.safetensors *mtp.safetensors", "outside"),
        ("model.safetensors *extra.bin", "outside"),
        ("model.safetensors *dist/__0_0.distcp", "format"),
        ("model.safetensors *weights.npz", "format"),
        ("m-f16.gguf *mmproj-m-f32.gguf", "outside"),
        ("m-f16.gguf *other-f16.gguf", "outside"),
        ("m-f16.gguf *lora-f16.gguf", "outside"),
        ("pytorch_model-00001-of-00001.bin pytorch_model.bin.index.json *extra.bin", "outside"),
    ],
)
def test_what_is_not_read_is_listed_with_a_code(paths: str, code: str) -> None:
    found = _selected(paths.replace("*", ""), pytorch_model=_index_of({"a": "pytorch_model-00001-of-00001.bin"}))
    assert [each.path for each in found.not_read] == sorted(path.lstrip("*") for path in paths.split() if path.startswith("*"))
    assert {each.code for each in found.not_read} == {code}


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
    listed = {*found.paths, *(each.path for each in found.not_read)}
    assert len(found.paths) == 1
    assert listed == {path for path in paths if is_weights(path) or format_of(path)}
    assert len(found.paths) + len(found.not_read) == len(listed)


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


def test_a_stale_index_names_the_set_that_is_complete(tmp_path: Path) -> None:
    for number, name in enumerate(_PAIR):
        _save(tmp_path / name, f"layers.{number}.weight")
    (tmp_path / _INDEX).write_text(json.dumps(_index_of({f"x{at}": f"model-{at:05d}-of-00004.safetensors" for at in range(1, 5)})))
    with pytest.raises(InvalidCheckpoint, match=f'and 1 more, which cannot be found: "{_PAIR[0]}" and "{_PAIR[1]}" are a complete model'):
        _open(tmp_path)


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
    assert "80 weights tested" in (out := capsys.readouterr().out) and "Do not run it in fp16" in out


def test_modules_on_the_hub(hub: LocalHub) -> None:
    dense = save({"linear.weight": np.ones((4, 4), np.float32)})
    modules = json.dumps([{"path": ""}, {"path": "2_Dense"}]).encode()
    hub.add("org/encoder", {"model.safetensors": save({"a": np.ones(3, np.float32)}), "2_Dense/model.safetensors": dense,
                            "modules.json": modules, "onnx/model.onnx": b"x", "3_Dense/model.safetensors": dense})  # fmt: skip
    with open_checkpoint("org/encoder", Access()) as checkpoint:
        assert {tensor.name for tensor in checkpoint.tensors} == {"a", "2_Dense/linear.weight"}
        assert [(each.path, each.code) for each in checkpoint.not_read] == [
            ("3_Dense/model.safetensors", "outside"), ("onnx/model.onnx", "repeats")]  # fmt: skip


@pytest.mark.parametrize(
    "content",
    [b"", b"[" * 100_000, b"\xff", {"path": "2_Dense"}, [{"path": "../2_Dense"}], [{"path": "2_Dense"}, {"path": "/etc"}],
     [{"path": "2_Dense\n"}], [{"path": "a\\b"}], [{"path": "2_Dense/../.."}]],
)  # fmt: skip
def test_modules_json_that_cannot_be_used_is_ignored(content: Any) -> None:
    found = _selected("model.safetensors modules.json 2_Dense/model.safetensors", modules=content)
    assert found.paths == ("model.safetensors",)
    assert [each.path for each in found.not_read] == ["2_Dense/model.safetensors"]
    assert [note.code for note in found.notes] == ["components"]


@pytest.mark.exhaustive
def test_modules_json_of_a_million_entries_is_not_parsed() -> None:
    content = json.dumps([{"path": str(at)} for at in range(1_000_000)]).encode()
    files = {"model.safetensors": 1, "modules.json": len(content)}
    found = select_weights(files, lambda _: content)
    assert [note.code for note in found.notes] == ["components"]
    many = select_weights(dict.fromkeys(files, 1), lambda _: b"[" + b"{}," * 300_000 + b'{"path": "x"}, 3, null, {"path": 3}]')
    assert many.paths == ("model.safetensors",) and many.notes == ()


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
    assert [(each.path, each.code) for each in found.not_read] == [
        ("sd.ckpt", "outside"), ("sd.safetensors", "outside"), ("unet/x.bin", "repeats"), ("vae_1_0/x.safetensors", "outside")]  # fmt: skip
    assert [each.prefix for each in found.sets] == ["unet/", "vae/"]
    part = _selected("model_index.json sd.safetensors vae/x.safetensors", model_index=_PIPELINE)
    assert [(each.path, each.code) for each in part.not_read] == [("sd.safetensors", "outside"), ("unet", "outside")]
    assert _selected("model_index.json sd.safetensors unet/config.json", model_index=_PIPELINE).paths == ("sd.safetensors",)


# Files that no index names.


def test_a_file_outside_the_index_is_not_read_and_listed(tmp_path: Path, hub: LocalHub) -> None:
    _sharded(tmp_path)
    _save(tmp_path / "model-mtp.safetensors", "mtp.weight")
    _save(tmp_path / "model.fp16-00001-of-00001.safetensors", "layers.0.weight")
    _save(tmp_path / "adapter_model.safetensors", "lora")
    (tmp_path / "cut.safetensors").write_bytes(b"\x80")
    hub.add("org/model", {path.name: path.read_bytes() for path in tmp_path.iterdir()})
    for ref in (tmp_path, "org/model"):
        with _open(ref) as checkpoint:
            assert len(checkpoint.tensors) == 2 and not checkpoint.notes
            assert {each.path: each.code for each in checkpoint.not_read} == {
                "adapter_model.safetensors": "outside", "cut.safetensors": "outside", "model-mtp.safetensors": "outside",
                "model.fp16-00001-of-00001.safetensors": "repeats"}  # fmt: skip


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
    with pytest.raises(InvalidCheckpoint, match=r'"m-00001-of-00003\.gguf" and 1 more of 3 weight files missing'):
        _open(tmp_path)


def test_a_gguf_part_of_absurdly_many_is_read_alone(tmp_path: Path) -> None:
    written(tmp_path / "m-000002-of-999999.gguf", {"t": (np.ones(4, np.float32), None)})
    with _open(tmp_path / "m-000002-of-999999.gguf") as checkpoint:
        assert len(checkpoint.tensors) == 1


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
    said = f'^"{name}" is cut off or damaged: its tensors need {len(data):,} bytes and it has {len(data) - 234:,}. Upload or'
    with pytest.raises(InvalidCheckpoint, match=said):
        _open(tmp_path)
    (tmp_path / name).write_bytes(data[:60])
    with pytest.raises(InvalidCheckpoint, match=r"is cut off or damaged: its header needs .* bytes and it has 60\."):
        _open(tmp_path)


def test_a_cut_pickle_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "pytorch_model.bin"
    torch.save({"a": torch.ones(10_000), "b": torch.ones(50, 50)}, file)
    data = file.read_bytes()
    for length in (10, 29, 100, 30_000, len(data) - 1):
        file.write_bytes(data[:length])
        with pytest.raises(InvalidCheckpoint, match=r'^"pytorch_model\.bin" is cut off or damaged'):
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
    assert time.process_time() - start < 60
    parts = {f"{at}-00001-of-05000.safetensors": at for at in range(many // 2)}
    assert len(select_weights({"model.safetensors": 1, **parts}, lambda _: b"").not_read) == many // 2
    folders = {f"{at}/{at}.safetensors": at for at in range(many)}
    with pytest.raises(NoWeights, match="more file"):
        select_weights(folders, lambda _: b"")
    modules = [{"path": str(at)} for at in range(max(6_000, many // 5))]
    with pytest.raises(LimitExceeded, match="more than"):
        select_weights({"modules.json": 1, **folders}, lambda _: json.dumps(modules).encode())
    assert time.process_time() - start < 90


def test_names_with_line_breaks_are_printable() -> None:
    found = select_weights({"model.safetensors": 1, "a\nb\x1b[31m.safetensors": 1, "x\n.h5": 1}, lambda _: b"")
    assert [each.path for each in found.not_read] == ["a<U+000A>b<U+001B>[31m.safetensors", "x<U+000A>.h5"]


def test_components_are_bounded_by_the_number_of_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SHARDS", 2)
    with pytest.raises(LimitExceeded, match="more than"):
        _selected("modules.json a/x.bin b/x.bin c/x.bin", modules=[{"path": name} for name in "abc"])


# Weights under names that do not say so, and folders that are not what they are named as.


def test_what_diffusers_does_not_load_of_a_pipeline_is_named(tmp_path: Path) -> None:
    parts = {"unet": ["diffusers", "UNet2DConditionModel"], "image_encoder": ["transformers", "CLIPVisionModel"]}
    others = {"scheduler": ["diffusers", "DDIMScheduler"], "feature_extractor": ["transformers", "CLIPImageProcessor"]}
    (tmp_path / "model_index.json").write_text(json.dumps(parts | others))
    for name in ("unet/diffusion_pytorch_model", "unet/other", "sd"):
        _save(tmp_path / f"{name}.safetensors", "a")
    with _open(tmp_path) as checkpoint:
        assert [file.path for file in checkpoint.files] == ["unet/diffusion_pytorch_model.safetensors"]
        assert {each.path: each.code for each in checkpoint.not_read} == dict.fromkeys(
            ("image_encoder", "sd.safetensors", "unet/other.safetensors"), "outside"
        )


def test_modules_without_weights_are_named(tmp_path: Path) -> None:
    _save(tmp_path / "model" / "model.safetensors", "a")
    _save(tmp_path / "elsewhere" / "model.safetensors", "b")
    for name in ("1_Pooling", "2_Dense", "inside"):
        (tmp_path / "model" / name).mkdir()
    (tmp_path / "model" / "3_Dense").symlink_to(tmp_path / "elsewhere")
    _save(tmp_path / "model" / "4_Dense" / "model.safetensors", "c")
    types = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense", "3_Dense": "Dense", "4_Dense": "Dense"}
    entries = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in types.items()]
    (tmp_path / "model" / "modules.json").write_text(json.dumps(entries))
    with _open(tmp_path / "model") as checkpoint:
        assert [file.path for file in checkpoint.files] == ["model.safetensors", "4_Dense/model.safetensors"]
        assert {each.path for each in checkpoint.not_read} == {"2_Dense", "3_Dense"}


def test_an_importance_matrix_is_refused_by_its_content(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_type("imatrix")
    writer.add_tensor("blk.0.attn_q.weight.in_sum2", np.ones(32, np.float32))
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        write()
    with pytest.raises(UnsupportedWeights, match="is an importance matrix, statistics for quantization without weights"):
        _open(tmp_path / "m.gguf")
