"""Folders without usable weights, each with the reason it must be refused."""

import io
import json
import zipfile
from dataclasses import dataclass

from tests.attacks.headers import described, tensor


@dataclass(frozen=True)
class Attack:
    """The files of a repository, path -> contents, and the reason why they must be refused."""

    name: str
    reason: str
    files: dict[str, bytes]


def _pickle() -> bytes:
    """Make a zip as torch writes it, whose pickle would call os.system."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("archive/data.pkl", b"cos\nsystem\n(S'touch /tmp/owned'\ntR.")
    return data.getvalue()


def _index(weight_map: object) -> bytes:
    return json.dumps({"metadata": {}, "weight_map": weight_map}).encode()


_FINE = described({"a": tensor([4], 0, 16)}, 16)
_SHARD = "model-00001-of-00002.safetensors"
_LAST = "model-00002-of-00002.safetensors"
_INDEX = "model.safetensors.index.json"
_GPTQ = {
    "layer.qweight": tensor([2], 0, 8, "I32"),
    "layer.qzeros": tensor([1], 8, 12, "I32"),
    "layer.scales": tensor([1], 12, 14, "F16"),
    "layer.g_idx": tensor([1], 14, 18, "I32"),
}

REPOSITORIES = [
    Attack("empty", "no file at all", {}),
    Attack("readme_only", "nothing but text", {"README.md": b"# model"}),
    Attack("config_only", "a configuration without weights", {"config.json": b'{"dtype": "float32"}'}),
    Attack("pickle_only", "a pickle that would run a command", {"pytorch_model.bin": _pickle(), "config.json": b"{}"}),
    Attack("pickle_renamed", "the same under the name of the safe format", {"model.safetensors": _pickle()}),
    Attack("gguf_only", "another format", {"model.gguf": b"GGUF" + bytes(100)}),
    Attack("empty_file", "weights of no byte", {"model.safetensors": b""}),
    Attack("truncated", "the file stops inside a tensor", {"model.safetensors": described({"a": tensor([100], 0, 400)}, 399)}),
    Attack("no_tensors", "a header without tensors", {"model.safetensors": described({})}),
    Attack("empty_tensor", "a tensor without elements", {"model.safetensors": described({"a": tensor([0, 9], 0, 0)})}),
    Attack("only_integers", "a table of integers", {"model.safetensors": described({"position_ids": tensor([2], 0, 16, "I64")}, 16)}),
    Attack("gptq", "integers of a quantized model", {"model.safetensors": described(_GPTQ, 18), "config.json": b"{}"}),
    Attack("missing_shard", "an index of two shards, of which one is there", {_INDEX: _index({"a": _SHARD, "b": _LAST}), _SHARD: _FINE}),
    Attack("unnumbered_shard", "one of two shards and no index", {_SHARD: _FINE}),
    Attack("escaping_shard", "a shard outside the repository", {_INDEX: _index({"a": "../../../etc/passwd"}), "model.bin": b""}),
    Attack("asking_shard", "a shard that is a question to the Hub", {_INDEX: _index({"a": "../../../../api/whoami-v2"})}),
    Attack("index_of_numbers", "a weight map of numbers", {_INDEX: _index({"a": 1}), _SHARD: _FINE}),
    Attack("index_as_list", "a weight map that is no map", {_INDEX: _index(["a"]), _SHARD: _FINE}),
    Attack("index_not_json", "an index cut short", {_INDEX: b'{"weight_map": {', _SHARD: _FINE}),
    Attack("index_deep", "an index nested 100,000 deep", {_INDEX: b"[" * 100_000, _SHARD: _FINE}),
    Attack("index_empty", "an index of nothing", {_INDEX: _index({})}),
    Attack("lfs_pointer", "text in place of weights", {"model.safetensors": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"}),
]
