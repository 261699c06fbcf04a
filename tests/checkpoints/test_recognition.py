"""Weight files are opened by what they hold, whatever they are called."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save, save_file

from analyzers.checkpoints import Access, open_checkpoint
from analyzers.checkpoints.formats.pickles import read_pickled
from analyzers.checkpoints.formats.recognition import Format, read_any_header, recognize
from analyzers.checkpoints.formats.safetensors_header import read_header
from analyzers.core.errors import InvalidCheckpoint, MantissaError, NoWeights, UnsupportedWeights
from tests.checkpoints.counting_file import MemoryFile
from tests.checkpoints.pickles.pickled_files import saved

LOCAL = Access(local=True)
WEIGHTS = {"w": torch.arange(12.0).reshape(3, 4)}
NAMES = [
    "weights.pth.tar",
    "net.jit",
    "last.ckpt",
    "spm.model",
    "weights",
    "a.sft",
    "optimizer.pt",
    "a.safetensors",
    "a.gguf",
    "a.bin",
    "x.txt",
]


def _write(kind: str, path: Path) -> None:
    if kind == "safetensors":
        save_file(WEIGHTS, path)
    elif kind == "gguf":
        from gguf import GGUFWriter

        writer = GGUFWriter(path, "llama")
        writer.add_tensor("w", WEIGHTS["w"].numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    else:
        path.write_bytes(saved(WEIGHTS, zipped=kind != "legacy", protocol=1 if kind == "protocol_1" else 2))


@pytest.mark.parametrize("kind", ["safetensors", "gguf", "zip", "legacy", "protocol_1"])
@pytest.mark.parametrize("name", NAMES)
def test_a_single_file_of_any_name(name: str, kind: str, tmp_path: Path) -> None:
    _write(kind, tmp_path / name)
    with open_checkpoint(str(tmp_path / name), LOCAL) as checkpoint:
        (tensor,) = checkpoint.tensors
        assert (tensor.name, tensor.dtype, tensor.shape) == ("w", "F32", (3, 4))


@pytest.mark.parametrize(("name", "kind", "what"), [
    ("a.safetensors", "zip", "a PyTorch file"), ("a.bin", "safetensors", "a safetensors file"), ("a.pt", "gguf", "a GGUF file"),
])  # fmt: skip
def test_a_misleading_name_is_noted(name: str, kind: str, what: str, tmp_path: Path) -> None:
    _write(kind, tmp_path / name)
    with open_checkpoint(str(tmp_path / name), LOCAL) as checkpoint:
        assert [(note.code, note.values["path"], note.values["format"]) for note in checkpoint.notes] == [("misnamed", name, what)]
    _write(kind, tmp_path / "neutral")
    with open_checkpoint(str(tmp_path / "neutral"), LOCAL) as checkpoint:
        assert not checkpoint.notes


def test_files_of_a_folder_are_read_by_content_too(tmp_path: Path) -> None:
    save_file(WEIGHTS, tmp_path / "pytorch_model.bin")
    with open_checkpoint(str(tmp_path), LOCAL) as checkpoint:
        assert [tensor.name for tensor in checkpoint.tensors] == ["w"]


@pytest.mark.parametrize("size", [4, 400_000])
def test_looking_costs_no_read(size: int) -> None:
    weights = {"w": torch.zeros(size), "v": torch.zeros(size)}
    for data, read in ((save(weights), read_header), (saved(weights), read_pickled), (saved(weights, zipped=False), read_pickled)):
        direct, looked = MemoryFile(data, "weights"), MemoryFile(data, "weights")
        assert read(direct) == read_any_header(looked, None)
        assert len(looked.reads) == len(direct.reads)


@pytest.mark.parametrize(
    ("name", "data", "error"),
    [
        ("notes.txt", b"hello", NoWeights),
        ("a.safetensors", b"", InvalidCheckpoint),
        ("a.sft", b"\xff" * 20, InvalidCheckpoint),
        ("a.safetensors", (1 << 40).to_bytes(8, "little") + b"{}", InvalidCheckpoint),
        ("a.pth.tar", bytes(257) + b"ustar\0" + bytes(2000), NoWeights),
        ("words.docx", b"PK\3\4" + bytes(100), InvalidCheckpoint),
        ("data.pkl", b"\x80\x04}.", UnsupportedWeights),
    ],
)
def test_files_without_weights(name: str, data: bytes, error: type[MantissaError], tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(error):
        open_checkpoint(str(tmp_path / name), LOCAL)


def test_recognize() -> None:
    assert recognize(save(WEIGHTS), len(save(WEIGHTS))) is Format.SAFETENSORS
    assert recognize(b"GGUF\3\0\0\0{", 9) is Format.GGUF
    assert recognize(b"\x80\x02", 2) is Format.PICKLED
    for beginning in (b"", b"\x80", b"\x80\x07", b"PK\5\6", (100).to_bytes(8, "little") + b"{"):
        assert recognize(beginning, len(beginning)) is None
