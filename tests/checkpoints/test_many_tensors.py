"""Opening costs little for each tensor, whatever the format: beside what the standard library takes to parse the same header."""

import json
import pickletools
import zipfile
from collections.abc import Callable
from pathlib import Path
from time import process_time

import torch
from safetensors.torch import save_file

from analyzers.checkpoints import Access, open_checkpoint

TENSORS = 4_000
# About three times what was measured on busy cores, 17 and 2.
SAFETENSORS, PICKLED = 50, 6


def tensors() -> dict[str, torch.Tensor]:
    return {f"model.layers.{i // 100}.mlp.experts.{i % 100}.up_proj.weight": torch.zeros(2, 2) for i in range(TENSORS)}


def seconds(work: Callable[[], object]) -> float:
    """Return the least processor time of three runs."""
    found = []
    for _ in range(3):
        start = process_time()
        work()
        found.append(process_time() - start)
    return min(found)


def opened(folder: Path) -> float:
    def work() -> None:
        with open_checkpoint(str(folder), Access(local=True)) as checkpoint:
            assert len(checkpoint.tensors) == TENSORS

    return seconds(work)


def test_safetensors(tmp_path: Path) -> None:
    save_file(tensors(), tmp_path / "model.safetensors")
    data = (tmp_path / "model.safetensors").read_bytes()
    header = data[8 : 8 + int.from_bytes(data[:8], "little")]
    assert opened(tmp_path) < SAFETENSORS * seconds(lambda: json.loads(header))


def test_pickles(tmp_path: Path) -> None:
    torch.save(tensors(), tmp_path / "pytorch_model.bin")
    with zipfile.ZipFile(tmp_path / "pytorch_model.bin") as archive:
        data = archive.read("pytorch_model/data.pkl")
    assert opened(tmp_path) < PICKLED * seconds(lambda: list(pickletools.genops(data)))
