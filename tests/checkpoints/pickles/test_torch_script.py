"""The parameters of a TorchScript program: names and bytes are those that torch.jit.load gives."""

import io

import pytest
import torch
from torch import nn

from analyzers.checkpoints.formats.pickles import read_pickled
from analyzers.core.errors import InvalidCheckpoint, UnsupportedWeights
from tests.checkpoints.counting_file import MemoryFile
from tests.checkpoints.pickles.pickled_files import contents, expected, saved

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


class Net(nn.Module):
    offset: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
        self.tied = self.layers[0]
        self.register_buffer("offset", torch.arange(3.0))
        self.sizes = [1, 2]
        self.table = {"a": torch.ones(5)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        tied: torch.Tensor = self.tied(x)
        return tied + self.offset + self.table["a"].sum() + self.sizes[0]


def _archive(program: torch.jit.ScriptModule, files: dict[str, str] | None = None) -> bytes:
    buffer = io.BytesIO()
    torch.jit.save(program, buffer, _extra_files=files)
    return buffer.getvalue()


def _models() -> dict[str, torch.jit.ScriptModule]:
    plain = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Conv1d(1, 2, 1).to(torch.bfloat16)).eval()
    first = plain[:2]
    return {
        "scripted": torch.jit.script(plain),
        "scripted_lists": torch.jit.script(Net()),
        "traced": torch.jit.trace(first, torch.ones(1, 2)),  # type: ignore[no-untyped-call]
        "lstm": torch.jit.script(nn.LSTM(2, 3, num_layers=2)),
    }


@pytest.mark.parametrize("name", ["scripted", "scripted_lists", "traced", "lstm"])
def test_parameters(name: str) -> None:
    data = _archive(_models()[name])
    theirs = torch.jit.load(io.BytesIO(data)).state_dict()  # type: ignore[no-untyped-call]
    file = MemoryFile(data, "model.jit")
    header = read_pickled(file)
    ours = dict(contents(file, header))
    assert ours == expected(theirs)  # attributes have no order


def test_files_that_a_program_brings_are_passed_over() -> None:
    data = _archive(_models()["scripted"], {"config": "a" * 10_000, "metadata.json": "{}"})
    assert len(read_pickled(MemoryFile(data)).tensors) == 9


def test_a_state_dict_of_a_program() -> None:
    program = _models()["lstm"]
    assert read_pickled(MemoryFile(saved(program.state_dict()))).notes == ()


def test_tensors_that_are_no_parameters_are_named() -> None:
    header = read_pickled(MemoryFile(_archive(_models()["scripted_lists"])))
    assert ("hidden", {"storages": 1, "bytes": 20}) in [(note.code, note.values) for note in header.notes]


def test_a_frozen_program_is_refused_with_the_way_out() -> None:
    frozen = torch.jit.freeze(torch.jit.script(nn.Linear(20, 30).eval()))
    with pytest.raises(UnsupportedWeights, match=r"frozen TorchScript program.*save it before torch\.jit\.freeze"):
        read_pickled(MemoryFile(_archive(frozen)))


def test_a_program_that_is_cut_off_is_refused() -> None:
    data = _archive(_models()["traced"])
    for length in range(0, len(data), 7):
        with pytest.raises((InvalidCheckpoint, UnsupportedWeights)):
            read_pickled(MemoryFile(data[:length]))
