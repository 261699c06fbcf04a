"""Which files are the weights."""

import json
from typing import Any

import pytest

from analyzers.checkpoints.weight_files.file_names import is_weights
from analyzers.checkpoints.weight_files.selection import WeightFiles, select_weights
from analyzers.core import limits
from analyzers.core.errors import CheckpointNotFound, InvalidCheckpoint, LimitExceeded, NoWeights


def _select(paths: str, subfolder: str | None = None, **indexes: Any) -> WeightFiles:
    """Select among ``paths`` (words). indexes: contents of every index file, by its name's first letters, and of lists of components."""
    indexes = {"model_index": {name: ["diffusers", "Model"] for name in ("vae", "unet")}, **indexes}
    files = dict.fromkeys(paths.split(), 100)

    def read_small(path: str) -> bytes:
        assert path.endswith((".safetensors.index.json", ".bin.index.json", "modules.json", "model_index.json"))
        content = next(value for key, value in indexes.items() if path.rpartition("/")[2].startswith(key))
        return content if isinstance(content, bytes) else json.dumps(content).encode()

    return select_weights(files, read_small, subfolder)


_INDEX = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
_PAIR = "model-00001-of-00002.safetensors model-00002-of-00002.safetensors"
_PICKLED_INDEX = {"weight_map": {"a": "pytorch_model-00001-of-00002.bin", "b": "pytorch_model-00002-of-00002.bin"}}
_PICKLED_PAIR = "pytorch_model-00001-of-00002.bin pytorch_model-00002-of-00002.bin"


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        ("config.json model.safetensors", "model.safetensors"),
        ("model.safetensors adapter_model.safetensors", "model.safetensors"),
        (f"model.safetensors model.safetensors.index.json {_PAIR}", "model.safetensors"),
        (f"model.safetensors {_PAIR}", "model.safetensors"),
        ("flux.sft ae.sft", "ae.sft flux.sft"),
        ("x.safetensors x_fp8_e4m3fn.safetensors x-fp16.safetensors", "x.safetensors"),
        ("adapter_model.safetensors", "adapter_model.safetensors"),
        ("model.safetensors model.fp16.safetensors unet/x.safetensors", "model.safetensors"),
        ("model.fp16.safetensors", "model.fp16.safetensors"),
        ("x.fp16.safetensors x.safetensors y.bf16.safetensors", "x.safetensors y.bf16.safetensors"),
        (f"model.safetensors.index.json {_PAIR} consolidated.safetensors", _PAIR),
        (f"{_PAIR} consolidated.safetensors", _PAIR),
        ("consolidated.safetensors params.json", "consolidated.safetensors"),
        (f"other.safetensors.index.json {_PAIR} extra.safetensors", _PAIR),
        (f"consolidated.safetensors.index.json consolidated-00001-of-00001.safetensors {_PAIR}", _PAIR),
        (
            "model-00000-of-00002.safetensors model-00001-of-00002.safetensors",
            "model-00000-of-00002.safetensors model-00001-of-00002.safetensors",
        ),
        ("b.safetensors a.safetensors", "a.safetensors b.safetensors"),
        ("model_index.json vae/d.safetensors unet/d.safetensors unet/d.fp16.safetensors", "unet/d.safetensors vae/d.safetensors"),
        ("deep/er/model.safetensors deep/er/lora/x.safetensors", "deep/er/model.safetensors"),
        # pickles
        ("config.json pytorch_model.bin training_args.bin optimizer.pt", "pytorch_model.bin"),
        ("pytorch_model.bin model.safetensors", "model.safetensors"),
        ("pytorch_model.bin adapter_model.safetensors", "pytorch_model.bin"),
        ("adapter_model.safetensors x.safetensors", "adapter_model.safetensors"),
        (f"pytorch_model.bin.index.json {_PICKLED_PAIR} training_args.bin", _PICKLED_PAIR),
        (f"pytorch_model.bin pytorch_model.bin.index.json {_PICKLED_PAIR}", "pytorch_model.bin"),
        (f"{_PICKLED_PAIR} optimizer.bin", _PICKLED_PAIR),
        (f"other.bin.index.json {_PICKLED_PAIR} extra.bin", _PICKLED_PAIR),
        ("pytorch_model.bin pytorch_model.fp16.bin rust_model.ot", "pytorch_model.bin"),
        ("pytorch_model.fp16.bin", "pytorch_model.fp16.bin"),
        ("adapter_model.bin", "adapter_model.bin"),
        ("consolidated.00.pth consolidated.01.pth params.json", "consolidated.00.pth consolidated.01.pth"),
        (
            "epoch_3.ckpt last.pt rng_state_0.pth scheduler.pt scaler.pt bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
            "epoch_3.ckpt last.pt",
        ),
        ("pytorch_model.bin onnx/model.safetensors 2_Dense/pytorch_model.bin", "pytorch_model.bin"),
        (
            "model_index.json unet/diffusion_pytorch_model.bin unet/x.bin vae/d.safetensors vae/d.bin v1-5-pruned.ckpt",
            "unet/diffusion_pytorch_model.bin vae/d.safetensors",
        ),
        ("training_args.bin checkpoint-500/pytorch_model.bin", "checkpoint-500/pytorch_model.bin"),
        # GGUF
        ("model.safetensors model-f16.gguf", "model.safetensors"),
        ("pytorch_model.bin model-f16.gguf", "pytorch_model.bin"),
        ("m-Q4_K_M.gguf m-F16.gguf m-BF16.gguf", "m-BF16.gguf"),
        ("m.Q4_K_M.gguf m.f16.gguf m.fp32.gguf", "m.fp32.gguf"),
        ("m-Q8_0.gguf m-f16.gguf mmproj-m-f32.gguf", "m-f16.gguf"),
        ("mmproj-m-f32.gguf", "mmproj-m-f32.gguf"),
        ("m-F16.gguf m.imatrix.gguf", "m-F16.gguf"),
        (
            "m-BF16-00002-of-00002.gguf m-Q8_0-00001-of-00002.gguf m-Q8_0-00002-of-00002.gguf m-Q2_K.gguf",
            "m-Q8_0-00001-of-00002.gguf m-Q8_0-00002-of-00002.gguf",
        ),
        (
            "Q4/m-Q4.gguf BF16/m-BF16-00001-of-00002.gguf BF16/m-BF16-00002-of-00002.gguf",
            "BF16/m-BF16-00001-of-00002.gguf BF16/m-BF16-00002-of-00002.gguf",
        ),
    ],
)
def test_selection(paths: str, expected: str) -> None:
    other = _PICKLED_INDEX if "pytorch" in paths else _INDEX
    found = _select(paths, model=_INDEX, pytorch_model=_PICKLED_INDEX, other=other)
    assert found.paths == tuple(expected.split())


def test_shards_of_an_index_are_one_group_and_plain_files_are_groups_of_their_own() -> None:
    assert len(_select(f"model.safetensors.index.json {_PAIR}", model=_INDEX).sets[0].groups) == 1
    assert len(_select("a.safetensors b.safetensors").sets[0].groups) == 2


def test_of_gguf_files_of_unknown_width_the_largest_is_read() -> None:
    found = select_weights({"m-Q4.gguf": 4, "m-Q8.gguf": 8, "m-Q2.gguf": 2}, lambda _: b"")
    assert found.paths == ("m-Q8.gguf",)
    assert [(note.code, note.values) for note in found.notes] == [("widest-gguf", {"files": 3, "path": "m-Q8.gguf"})]


@pytest.mark.parametrize(
    "path", ["training_args.bin", "a/optimizer.pt", "optimizer_1.bin", "scheduler.pt", "rng_state_7.pth", "random_states_0.pt", "scaler.pt",
             "zero_pp_rank_0_mp_rank_00_optim_states.pt", "openvino_model.bin", "ggml-model-q4.bin", "vocab.txt", "model.pkl",
             "m.imatrix.gguf", "m-imatrix.gguf", "imatrix.gguf", "imatrix_unsloth.gguf"]
)  # fmt: skip
def test_what_is_no_weights(path: str) -> None:
    assert not is_weights(path)
    with pytest.raises(NoWeights):
        _select(path)


def test_folders_are_read_together_only_if_a_list_says_so() -> None:
    (note,) = _select("model_index.json vae/model.safetensors unet/model.safetensors").notes
    assert (note.code, note.values) == ("folders", {"folders": ("unet", "vae")})
    for paths in ("a/model.safetensors b/model.safetensors", "checkpoint-100/model.safetensors checkpoint-200/model.safetensors"):
        with pytest.raises(NoWeights, match="in several folders: name one of"):
            _select(paths)


def test_subfolder() -> None:
    paths = "model.safetensors fp16/model.safetensors fp16x/model.safetensors onnx/model.onnx"
    assert _select(paths, "fp16").paths == ("fp16/model.safetensors",)
    assert _select(paths, "fp16/").sets[0].folder == "fp16"
    with pytest.raises(CheckpointNotFound, match="nowhere"):
        _select(paths, "nowhere")
    with pytest.raises(NoWeights, match=r"onnx.*conversions\.md"):
        _select(paths, "onnx")


@pytest.mark.parametrize(
    "paths",
    ["", "README.md", "config.json training_args.bin", "model.ggml config.json", "tf_model.h5", "onnx/model.onnx onnx/model.onnx_data",
     "x/__0_0.distcp x/__1_0.distcp", "manifest.ocdbt d/0123456789abcdef", "rust_model.ot"],
)  # fmt: skip
def test_no_weights(paths: str) -> None:
    with pytest.raises(NoWeights):
        _select(paths)


@pytest.mark.parametrize(
    ("paths", "missing"),
    [
        ("model.safetensors.index.json model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"),
        ("model.safetensors.index.json", "model-00001-of-00002.safetensors"),
        ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"),
        ("x/model-00002-of-00003.safetensors", "model-00001-of-00003.safetensors"),
        ("pytorch_model.bin.index.json pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"),
        ("pytorch_model-00002-of-00002.bin", "pytorch_model-00001-of-00002.bin"),
        ("m-f16-00001-of-00003.gguf m-f16-00003-of-00003.gguf", "m-f16-00002-of-00003.gguf"),
    ],
)
def test_truncated_checkpoint_names_the_missing_shard(paths: str, missing: str) -> None:
    with pytest.raises(InvalidCheckpoint, match=missing):
        _select(paths, model=_INDEX, pytorch_model=_PICKLED_INDEX)


@pytest.mark.parametrize(
    "shard",
    ["../model.safetensors", "/model.safetensors", "a//model.safetensors", "./model.safetensors", "..\\model.safetensors", "model.bin",
     "../../../../api/whoami-v2", "", "a\n.safetensors", 3, None, ["model.safetensors"]],
)  # fmt: skip
def test_hostile_shard_names(shard: object) -> None:
    with pytest.raises(InvalidCheckpoint):
        _select("model.safetensors.index.json x.safetensors model.bin", model={"weight_map": {"a": shard}})


@pytest.mark.parametrize("shard", ["../pytorch_model.bin", "/pytorch_model.bin", "model.safetensors", "x.py", "", 3])
def test_hostile_shard_names_in_an_index_of_pickles(shard: object) -> None:
    with pytest.raises(InvalidCheckpoint):
        _select("pytorch_model.bin.index.json x.bin x.py", pytorch_model={"weight_map": {"a": shard}})


@pytest.mark.parametrize(
    "index", [b"", b"{", b"\xff", b"[" * 200_000, b"[]", b"{}", b'{"weight_map": {}}', b'{"weight_map": []}', b"9" * 10_000]
)
def test_damaged_index(index: bytes) -> None:
    with pytest.raises((InvalidCheckpoint, LimitExceeded), match="index"):
        _select("model.safetensors.index.json x.safetensors", model=index)


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LimitExceeded, match="weight files, more than 5,000"):
        _select("model-00001-of-999999.safetensors")
    monkeypatch.setattr(limits, "SHARDS", 1)
    with pytest.raises(LimitExceeded, match="weight files, more than 1"):
        _select("a.safetensors b.safetensors")
    monkeypatch.setattr(limits, "INDEX_BYTES", 99)
    with pytest.raises(LimitExceeded, match="bytes, more than 99"):
        _select(f"model.safetensors.index.json {_PAIR}", model=_INDEX)
