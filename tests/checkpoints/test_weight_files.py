"""Which files are the weights, and which are listed as not read, by their names and by the lists of a repository."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from analyzers.checkpoints import is_weights
from analyzers.checkpoints.weight_files.file_names import format_of
from analyzers.checkpoints.weight_files.selection import WeightFiles, select_weights
from analyzers.core import limits
from analyzers.core.errors import CheckpointNotFound, InvalidCheckpoint, LimitExceeded, NoWeights
from analyzers.core.untrusted_json import parse_json

_PAIR = "model-00001-of-00002.safetensors model-00002-of-00002.safetensors"
_PICKLED_PAIR = "pytorch_model-00001-of-00002.bin pytorch_model-00002-of-00002.bin"
_LISTS: dict[str, Any] = {
    "model.safetensors.index.json": {"weight_map": dict(zip("ab", _PAIR.split(), strict=True))},
    "pytorch_model.bin.index.json": {"weight_map": dict(zip("ab", _PICKLED_PAIR.split(), strict=True))},
}  # fmt: skip
_LISTS |= dict.fromkeys(("other.safetensors.index.json", "consolidated.safetensors.index.json"), _LISTS["model.safetensors.index.json"])


def _reader(lists: dict[str, Any]) -> Callable[[str, int], Any]:
    """Read JSON files by name, from their bytes or their values."""

    def read_json(path: str, most: int) -> Any:
        content = lists[path.rpartition("/")[2]]
        return parse_json(content if isinstance(content, bytes) else json.dumps(content).encode(), lenient=True)

    return read_json


def _select(paths: str, subfolder: str | None = None, **lists: Any) -> WeightFiles:
    """Select among ``paths`` (words). lists: content of the JSON file of that name, with "_" for "."."""
    named = {name.replace("__", "."): content for name, content in lists.items()}
    return select_weights(dict.fromkeys(paths.split(), 100), _reader(_LISTS | named), subfolder)


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        ("model.safetensors adapter_model.safetensors", "model.safetensors"),
        (f"model.safetensors model.safetensors.index.json {_PAIR}", "model.safetensors"),
        ("x.safetensors x_fp8_e4m3fn.safetensors x-fp16.safetensors", "x.safetensors"),
        ("model.safetensors model.fp16.safetensors unet/x.safetensors", "model.safetensors"),
        ("x.fp16.safetensors x.safetensors y.bf16.safetensors", "x.safetensors y.bf16.safetensors"),
        (f"model.safetensors.index.json {_PAIR} consolidated.safetensors", _PAIR),
        (f"{_PAIR} consolidated.safetensors", _PAIR),
        ("consolidated.safetensors params.json", "consolidated.safetensors"),
        (f"other.safetensors.index.json {_PAIR} extra.safetensors", _PAIR),
        (f"consolidated.safetensors.index.json consolidated-00001-of-00001.safetensors {_PAIR}", _PAIR),
        ("x-00000-of-00002.safetensors x-00001-of-00002.safetensors", "x-00000-of-00002.safetensors x-00001-of-00002.safetensors"),
        ("b.safetensors a.safetensors", "a.safetensors b.safetensors"),
        # pickles
        ("config.json pytorch_model.bin training_args.bin optimizer.pt", "pytorch_model.bin"),
        ("pytorch_model.bin model.safetensors", "model.safetensors"),
        ("config.json pytorch_model.bin ema.safetensors", "pytorch_model.bin"),
        ("adapter_model.safetensors x.safetensors", "adapter_model.safetensors"),
        (f"pytorch_model.bin.index.json {_PICKLED_PAIR} training_args.bin", _PICKLED_PAIR),
        ("epoch_3.ckpt last.pt rng_state_0.pth scheduler.pt bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", "epoch_3.ckpt last.pt"),
        ("pytorch_model.bin onnx/model.safetensors 2_Dense/pytorch_model.bin", "pytorch_model.bin"),
        # GGUF
        ("model.safetensors model-f16.gguf", "model.safetensors"),
        ("m-Q4_K_M.gguf m-F16.gguf m-BF16.gguf", "m-BF16.gguf"),
        ("m-Q8_0.gguf m-f16.gguf mmproj-m-f32.gguf", "m-f16.gguf"),
        ("mmproj-m-f32.gguf", "mmproj-m-f32.gguf"),
        ("m-BF16-00002-of-00002.gguf m-Q8_0-00001-of-00002.gguf m-Q8_0-00002-of-00002.gguf m-Q2_K.gguf",
         "m-Q8_0-00001-of-00002.gguf m-Q8_0-00002-of-00002.gguf"),
        ("Q4/m-Q4.gguf BF16/m-BF16-00001-of-00002.gguf BF16/m-BF16-00002-of-00002.gguf",
         "BF16/m-BF16-00001-of-00002.gguf BF16/m-BF16-00002-of-00002.gguf"),
    ],
)  # fmt: skip
def test_selection(paths: str, expected: str) -> None:
    assert _select(paths).paths == tuple(expected.split())


def test_of_gguf_files_of_unknown_width_the_largest_is_read() -> None:
    found = select_weights({"m-Q4.gguf": 4, "m-Q8.gguf": 8, "m-Q2.gguf": 2}, _reader({}))
    assert found.paths == ("m-Q8.gguf",)
    assert [(note.code, note.values) for note in found.notes] == [("widest-gguf", {"files": 3, "path": "m-Q8.gguf"})]


@pytest.mark.parametrize(
    "path", ["training_args.bin", "a/optimizer.pt", "optimizer_1.bin", "rng_state_7.pth", "zero_pp_rank_0_mp_rank_00_optim_states.pt",
             "openvino_model.bin", "ggml-model-q4.bin", "vocab.txt", "m.imatrix.gguf", "imatrix_unsloth.gguf", "config.json", "tf_model.h5",
             "onnx/model.onnx", "x/__0_0.distcp"]
)  # fmt: skip
def test_what_is_no_weights(path: str) -> None:
    assert not is_weights(path)
    with pytest.raises(NoWeights, match=r"docs/conversions\.md" if format_of(path) else "needed"):
        _select(f"{path} LICENSE")


def test_folders_are_read_together_only_if_a_list_says_so() -> None:
    found = _select("modules.json vae/model.safetensors unet/model.safetensors", modules__json=[{"path": "unet"}, 3, {"path": "vae"}])
    assert [(note.code, note.values) for note in found.notes] == [("folders", {"folders": ("unet", "vae")})]
    assert [(part.folder, part.prefix) for part in found.sets] == [("unet", ""), ("vae", "vae/")]
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
    ("paths", "missing"),
    [
        ("model.safetensors.index.json model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"),
        ("model.safetensors.index.json", "model-00001-of-00002.safetensors"),
        ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"),
        ("m-f16-00001-of-00003.gguf m-f16-00003-of-00003.gguf", "m-f16-00002-of-00003.gguf"),
        ("model-00001-of-999999.safetensors", "model-00002-of-999999.safetensors"),
    ],
)
def test_truncated_checkpoint_names_the_missing_shard(paths: str, missing: str) -> None:
    with pytest.raises(InvalidCheckpoint, match=missing):
        _select(paths)


@pytest.mark.parametrize(
    "shard",
    ["../model.safetensors", "/model.safetensors", "a//model.safetensors", "model.bin", "", "\ud800", 3, ["model.safetensors"]],
)
def test_hostile_shard_names(shard: object) -> None:
    index = {"weight_map": {"a": shard}}
    with pytest.raises(InvalidCheckpoint):
        _select("model.safetensors.index.json x.safetensors model.bin", model__safetensors__index__json=index)


@pytest.mark.parametrize("index", [b"{", b"\xff", b"[" * 200_000, b"[]", b'{"weight_map": {}}', b'{"weight_map": []}', b"9" * 10_000])
def test_damaged_index(index: bytes) -> None:
    with pytest.raises((InvalidCheckpoint, LimitExceeded), match="index"):
        _select("model.safetensors.index.json x.safetensors", model__safetensors__index__json=index)


@pytest.mark.parametrize(
    ("content", "noted"),
    [(content, True) for content in (b"[" * 100_000, b"\xff", b"3", b"{}")]
    + [([{"path": path}], False) for path in ("../2_Dense", "2_Dense\n", "2_Dense/../..", "\ud800")],
)
def test_modules_json_that_names_no_folder_of_the_checkpoint_is_ignored(content: Any, noted: bool) -> None:
    found = _select("model.safetensors modules.json 2_Dense/model.safetensors", modules__json=content)
    assert found.paths == ("model.safetensors",)
    assert [each.path for each in found.not_read] == ["2_Dense/model.safetensors"]
    assert [note.code for note in found.notes] == ["unreadable-json"] * noted


# A "*" marks files that are not read.
@pytest.mark.parametrize(
    ("paths", "code"),
    [
        ("model.safetensors *pytorch_model.bin", "repeats"),
        (f"model.safetensors *{_PICKLED_PAIR.replace(' ', ' *')}", "repeats"),
        ("model.safetensors *model.fp16.safetensors *model.fp16-00001-of-00002.safetensors *pytorch_model.fp16.bin", "repeats"),
        ("model.safetensors *consolidated.safetensors *consolidated.00.pth *original/consolidated.00.pth", "repeats"),
        ("model.safetensors *onnx/model.safetensors *m-Q4_K_M.gguf", "repeats"),
        ("m-F16.gguf *m-Q4_K_M.gguf *Q8/m.i1-Q8_0.gguf *m-IQ2_XXS.gguf *m-UD-Q4_K_XL.gguf *m-BF16-00001-of-00002.gguf", "repeats"),
        ("model.safetensors *tf_model.h5 *flax_model.msgpack *onnx/model.onnx *onnx/model.onnx_data", "repeats"),
        ("adapter_model.safetensors adapter_config.json *adapter_model.bin", "repeats"),
        ("model.safetensors *model.tar.gz *weights.zip *weights.npy *weights.npz *dist/__0_0.distcp", "format"),
        ("model.safetensors adapter_config.json *adapter_model.safetensors *my-lora.safetensors", "outside"),
        ("model.safetensors *2_Dense/model.safetensors *tf_head/model.safetensors *checkpoint-500/model.safetensors", "outside"),
        ("m-f16.gguf *mmproj-m-f32.gguf *other-f16.gguf *lora-f16.gguf", "outside"),
        (f"pytorch_model.bin.index.json {_PICKLED_PAIR} *extra.bin", "outside"),
    ],
)
def test_what_is_not_read_is_listed_with_a_code(paths: str, code: str) -> None:
    found = _select(paths.replace("*", ""))
    assert [each.path for each in found.not_read] == sorted(path.lstrip("*") for path in paths.split() if path.startswith("*"))
    assert {each.code for each in found.not_read} == {code}


@pytest.mark.parametrize("path", ["optimizer.pt", "rng_state_0.pth", "vocab.pkl", "tokenizer.zip", "label.npy", "README.md"])
def test_training_state_and_other_files_are_not_listed(path: str) -> None:
    found = _select(f"model.safetensors {path}")
    assert not found.not_read and not found.notes


def test_every_file_is_read_or_listed() -> None:
    names = ["model", "pytorch_model", "x", "x.fp16", "consolidated", "m-Q4_0", "optimizer", "tf_model", "model-00001-of-00002", "imatrix"]
    endings = ["safetensors", "sft", "bin", "pt", "ckpt", "gguf", "h5", "msgpack", "onnx", "npz", "distcp", "safetensors.index.json", "txt"]
    paths = [f"{folder}{name}.{ending}" for folder in ("", "a/", "onnx/", "a/b/") for name in names for ending in endings]
    found = _select(" ".join(paths))
    listed = {*found.paths, *(each.path for each in found.not_read)}
    assert len(found.paths) == 1
    assert listed == {path for path in paths if is_weights(path) or format_of(path)}
    assert len(found.paths) + len(found.not_read) == len(listed)


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SHARDS", 1)
    with pytest.raises(LimitExceeded, match="weight files, more than 1"):
        _select("a.safetensors b.safetensors")
