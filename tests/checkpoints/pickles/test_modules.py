"""A model that was pickled whole is read without its classes: names and bytes are those of its state_dict()."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from analyzers.checkpoints.formats.pickles import read_pickled
from analyzers.core.errors import InvalidCheckpoint, UnsupportedWeights
from analyzers.core.notes import Note
from tests.checkpoints.counting_file import MemoryFile
from tests.checkpoints.pickles.pickled_files import contents, expected, loaded, saved

LAYOUTS = [pytest.param(True, id="zip"), pytest.param(False, id="legacy")]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.model = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(4, 4), nn.TransformerEncoderLayer(4, 2, 8)])})
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("mask", torch.ones(2, dtype=torch.bool))
        self.register_buffer("cache", torch.zeros(9), persistent=False)
        self.register_buffer("missing", None)
        self.register_parameter("absent", None)
        self.free = nn.ParameterDict({"scale": nn.Parameter(torch.ones(3))})
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight
        self.plain = [torch.ones(11)]
        self.activation = nn.functional.gelu


class OldNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.utils.weight_norm(nn.Conv1d(2, 3, 1))


class Average(nn.Module):
    """An average of a model, as timm and torch.optim.swa_utils wrap it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.module = copy.deepcopy(model)
        self.register_buffer("updates", torch.tensor(3))


def _assert_state(data: bytes, state: dict[str, torch.Tensor]) -> tuple[Note, ...]:
    file = MemoryFile(data, "model.pt")
    header = read_pickled(file)
    ours = dict(contents(file, header))
    assert list(ours) == list(state)
    assert ours == expected(state)
    return header.notes


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize("zipped", LAYOUTS)
@pytest.mark.parametrize("protocol", [2, 4])
def test_whole_models(protocol: int, zipped: bool) -> None:
    for model in (nn.Linear(2, 3), nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.LSTM(2, 2)), Average(nn.Linear(3, 3)), OldNorm()):
        data = saved(model, zipped=zipped, protocol=protocol)
        theirs = loaded(data, weights_only=False)
        assert isinstance(theirs, nn.Module)
        _assert_state(data, theirs.state_dict())


def test_a_model_with_everything() -> None:
    model = Net()
    for value in (model, Average(model)):
        notes = _assert_state(saved(value), loaded(saved(value), weights_only=False).state_dict())
        assert (notes[-1].code, notes[-1].values) == ("hidden", {"storages": 2, "bytes": 80})


@pytest.mark.parametrize("zipped", LAYOUTS)
def test_a_model_inside_of_a_trainers_checkpoint(zipped: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    value: dict[str, Any] = {"epoch": 3, "model": model, "ema": Average(model), "optimizer": optimizer.state_dict(), "date": "2026"}
    _assert_state(saved(value, zipped=zipped), model.state_dict())
    _assert_state(saved({**value, "model": None}, zipped=zipped), Average(model).state_dict())
    state = {**{f"encoder.{k}": v for k, v in model.state_dict().items()}, **{f"head.{k}": v for k, v in model[0].state_dict().items()}}
    _assert_state(saved({"encoder": model, "head": model[0], "optimizer": optimizer}, zipped=zipped), state)


def test_a_module_called_model_keeps_its_name() -> None:
    outer = nn.ModuleDict({"model": nn.Linear(2, 2)})
    _assert_state(saved(outer), outer.state_dict())


def test_tensors_that_a_class_builds_are_refused_by_name() -> None:
    sparse = nn.Module()
    sparse.register_buffer("graph", torch.eye(3).to_sparse())
    with pytest.raises(UnsupportedWeights, match="_rebuild_sparse_tensor"):
        read_pickled(MemoryFile(saved(sparse)))


def test_damaged_modules() -> None:
    from tests.attacks.pickles import mapping, module, pickled, stored, zipped

    sound = zipped(pickled(module(mapping(w=stored()))))
    assert [tensor.name for tensor in read_pickled(MemoryFile(sound)).tensors] == ["w"]
    with pytest.raises(InvalidCheckpoint, match="reaches beyond the end of its storage"):
        read_pickled(MemoryFile(zipped(pickled(module(mapping(w=stored(shape=b"(K\x05t")))))))
