"""Weight files are read in the format that their names say."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from analyzers.checkpoints import Access, open_checkpoint
from analyzers.core.errors import InvalidCheckpoint, MantissaError, NoWeights, UnsupportedWeights
from tests.checkpoints.pickles.pickled_files import saved

_LOCAL = Access(local=True)
_WEIGHTS = {"w": torch.arange(12.0).reshape(3, 4)}


@pytest.mark.parametrize(
    ("name", "data"),
    [("a.safetensors", save(_WEIGHTS)), ("a.sft", save(_WEIGHTS))]
    + [(name, saved(_WEIGHTS, zipped=zipped)) for name in ("a.bin", "last.ckpt", "optimizer.pt") for zipped in (True, False)],
)
def test_a_single_file(name: str, data: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with open_checkpoint(str(tmp_path / name), _LOCAL) as checkpoint:
        (tensor,) = checkpoint.tensors
        assert (tensor.name, tensor.dtype, tensor.shape) == ("w", "F32", (3, 4))


@pytest.mark.parametrize(
    ("name", "data", "error"),
    [
        ("notes.txt", b"hello", NoWeights),
        ("weights", save(_WEIGHTS), NoWeights),
        ("a.safetensors", b"", InvalidCheckpoint),
        ("a.sft", b"\xff" * 20, InvalidCheckpoint),
        ("a.safetensors", (1 << 40).to_bytes(8, "little") + b"{}", InvalidCheckpoint),
        ("a.safetensors", saved(_WEIGHTS), InvalidCheckpoint),
        ("a.gguf", saved(_WEIGHTS), InvalidCheckpoint),
        ("a.bin", save(_WEIGHTS), UnsupportedWeights),
        ("data.pt", b"\x80\x04}.", UnsupportedWeights),
    ],
)
def test_files_without_weights(name: str, data: bytes, error: type[MantissaError], tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(error):
        open_checkpoint(str(tmp_path / name), _LOCAL)
