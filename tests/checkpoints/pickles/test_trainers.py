"""Pickles as trainers write them: every tensor that is read is what torch.load gives, and every other is named."""

import argparse
import collections
import datetime
import enum
import io
import pathlib
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from analyzers.checkpoints.formats.pickles import read_pickled
from tests.checkpoints.counting_file import MemoryFile
from tests.checkpoints.pickles.pickled_files import UNTYPED, contents, expected, loaded, saved

pytestmark = pytest.mark.filterwarnings("ignore")


class Stage(enum.IntEnum):
    LAST = 2


@dataclass
class Recipe:
    rate: float = 0.1
    stages: dict[str, Stage] = field(default_factory=lambda: {"a": Stage.LAST})


class DictConfig(dict[str, Any]):
    """A configuration that refers to its parent, as OmegaConf's do."""

    def __init__(self, content: Any, parent: Any = None) -> None:
        super().__init__()
        self.__dict__.update(_content=content, _parent=parent, _metadata={"type": dict})


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config = DictConfig({"a": 1})
        self.layers = nn.ModuleList([nn.Linear(3, 3, dtype=torch.bfloat16), nn.GRU(3, 2)])
        self.norm = nn.Conv1d(2, 2, 1)
        self.hooked = nn.Linear(1, 1)
        self.hooked.register_forward_hook(_hook)


def _hook(*_: Any) -> None:
    pass


def _trained() -> tuple[nn.Module, dict[str, Any]]:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters(), amsgrad=True)
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    return model, optimizer.state_dict()


def _views() -> dict[str, torch.Tensor]:
    flat = torch.randn(60)
    matrix = flat[10:58].view(6, 8)
    return {
        "t": matrix.t(), "expanded": flat[3:4].expand(4, 5), "stepped": matrix[::2, 1::3], "flipped": matrix.flip(0), "none": flat[:0],
        "empty": torch.empty(0, 7), "scalar": flat[9], "diagonal": matrix.diagonal(), "last": flat[-1:], "tied": matrix, "alias": matrix,
        "long": matrix.permute(1, 0).unsqueeze(1),
    }  # fmt: skip


def _dtypes() -> dict[str, torch.Tensor]:
    types_ = [torch.bfloat16, torch.half, torch.double, torch.bool, torch.complex64, torch.int16]
    return {str(dtype): torch.randn(3, 4).to(dtype) for dtype in types_}


def _untyped() -> dict[str, torch.Tensor]:
    return {str(dtype): torch.arange(24, dtype=torch.uint8).view(dtype) for dtype in UNTYPED}


def _lightning() -> dict[str, Any]:
    model, optimizer = _trained()
    return {
        "epoch": 1, "global_step": 20, "pytorch-lightning_version": "2.4.0", "state_dict": model.state_dict(), "loops": {"fit": {"a": 1}},
        "callbacks": {"ModelCheckpoint{'monitor': None}": {"best_model_score": torch.tensor(0.5), "dirpath": pathlib.PurePosixPath("/x")}},
        "optimizer_states": [optimizer], "lr_schedulers": [{"last_epoch": 1}], "hparams_name": "kwargs",
        "hyper_parameters": {"lr": 0.1, "cfg": DictConfig({"a": 1}, DictConfig({})), "args": argparse.Namespace(a=1)},
    }  # fmt: skip


def _fairseq() -> dict[str, Any]:
    model, optimizer = _trained()
    return {
        "args": argparse.Namespace(arch="transformer", data=["a"]), "model": model.state_dict(), "last_optimizer_state": optimizer,
        "optimizer_history": [{"criterion_name": "CrossEntropy", "num_updates": 7}], "extra_state": {"train_iterator": {"epoch": 3}},
    }  # fmt: skip


def _resumed() -> dict[str, Any]:
    model, optimizer = _trained()
    state = model.state_dict()
    return {
        "model": state, "optimizer": optimizer, "ema": {name: value + 1 for name, value in state.items()}, "scaler": {"scale": 65536.0},
        "date": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), "recipe": Recipe(), "stage": Stage.LAST, "best": np.float64(0.5),
        "np_rng_state": np.random.get_state(), "rng_state": torch.get_rng_state(), "hist": collections.Counter("aab"),
        "log": collections.defaultdict(list, loss=[0.1, float("nan")]), "array": np.ones((2, 3)), "space": types.SimpleNamespace(a=1),
    }  # fmt: skip


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield prefix, value
    elif isinstance(value, nn.Module):
        yield from ((f"{prefix}.{name}".strip("."), tensor) for name, tensor in value.state_dict().items())
    elif isinstance(value, dict | list | tuple):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _flat(each, f"{prefix}.{key}".strip("."))


# A name, what is saved, the key of the weights in it, and the keys of the tensors next to them.
WILD: list[tuple[str, Any, str | None, list[str]]] = [
    ("views", _views(), None, []),
    ("dtypes", _dtypes(), None, []),
    ("float8", _untyped(), None, []),
    ("module", Net(), None, []),
    ("sequential", _trained()[0], None, []),
    ("parameters", nn.ParameterDict({"a": nn.Parameter(torch.randn(3)), "b": nn.Parameter(torch.randn(2, 2))}), None, []),
    ("list", [torch.randn(2), torch.randn(3)], None, []),
    ("nested_lists", {"layers": [[torch.randn(2)], [torch.randn(3), {"w": torch.randn(1)}]], "n": (torch.randn(2),)}, None, []),
    ("whole_numbers", {0: torch.randn(2), 1: {2: torch.randn(3)}}, None, []),
    ("ordered", collections.OrderedDict(a=torch.randn(2)), None, []),
    ("default", collections.defaultdict(dict, a={"b": torch.randn(2)}), None, []),
    ("prompt", {"string_to_token": {"*": 265}, "string_to_param": {"*": torch.randn(2, 4)}, "name": "x", "step": 7}, None, []),
    ("lora", {"base.lora_A.weight": torch.randn(2, 4), "alpha": 8, "meta": {"r": 2}}, None, []),
    ("lightning", _lightning(), "state_dict", ["callbacks", "optimizer_states"]),
    ("fairseq", _fairseq(), "model", ["last_optimizer_state"]),
    ("resumed", _resumed(), "model", ["optimizer", "ema", "rng_state"]),
    ("module_in_dict", {"epoch": 1, "model": Net(), "optimizer": _trained()[1]}, "model", ["optimizer"]),
    ("teacher", {"model": {"w": torch.randn(3)}, "teacher": {"w": torch.randn(3)}}, "model", ["teacher"]),
    ("average", {"state_dict": {"w": torch.randn(3)}, "ema_model": {"w": torch.randn(3)}, "args": Recipe()}, "state_dict", ["ema_model"]),
    ("only_average", {"ema": {"w": torch.randn(3)}, "optimizer": _trained()[1]}, "ema", ["optimizer"]),
    ("wrapped_twice", {"state_dict": {"model": {"w": torch.randn(3)}}}, "state_dict", []),
    ("two_parts", {"encoder": {"w": torch.randn(3)}, "decoder": nn.Linear(2, 2), "step": 3}, None, []),
    ("detached", {"w": torch.randn(3, requires_grad=True), "b": nn.Buffer(torch.ones(2))}, None, []),
    ("optimizer_alone", _trained()[1]["state"], None, []),
    ("megatron", {"args": argparse.Namespace(a=Stage.LAST), "model": {"lm": {"w": torch.randn(3)}}, "rng_state": [torch.ones(2)]},
     "model", ["rng_state"]),
]  # fmt: skip


@pytest.mark.parametrize(("value", "key", "beside"), [pytest.param(*case, id=name) for name, *case in WILD])
def test_every_tensor_is_read_or_named(value: Any, key: str | None, beside: list[str]) -> None:
    for zipped, protocol in ((True, 2), (True, 4), (True, 5), (False, 2), (False, 3)):
        if value is WILD[2][1] and not zipped:
            continue  # torch cannot load what it writes
        data = saved(value, zipped=zipped, protocol=protocol)
        theirs = loaded(data, weights_only=False)
        chosen = theirs if key is None else theirs[key]
        chosen = chosen["model"] if key == "state_dict" and "model" in chosen else chosen
        file = MemoryFile(data, "model.pt")
        header = read_pickled(file)
        assert dict(contents(file, header)) == expected(dict(_flat(chosen)))
        assert [row.what.strip('"') for row in header.omitted] == beside
        for row in header.omitted:
            tensors = dict(_flat(theirs[row.what.strip('"')]))
            assert (row.tensors, row.parameters) == (len(tensors), sum(tensor.numel() for tensor in tensors.values()))


def test_a_program_with_parts() -> None:
    program = torch.jit.script(nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.LayerNorm(3), nn.Conv1d(1, 2, 1))))
    buffer = io.BytesIO()
    torch.jit.save(program, buffer)
    file = MemoryFile(buffer.getvalue(), "model.pt")
    assert dict(contents(file, read_pickled(file))) == expected(program.state_dict())


@pytest.mark.exhaustive
def test_an_optimizer_of_10_000_tensors_is_far_below_the_limit() -> None:
    """A model of 10,000 tensors and three tensors for each in its optimizer: 40,000 storages, 1.4 million opcodes."""
    one = torch.ones(1)
    names = [f"model.layers.{number}.mlp.experts.{number % 64}.down_proj.weight" for number in range(10_000)]
    optimizer = {number: {part: one.clone() for part in ("step", "exp_avg", "exp_avg_sq")} for number in range(10_000)}
    data = saved({"model": {name: one.clone() for name in names}, "optimizer": {"state": optimizer, "param_groups": [{"lr": 0.1}]}})
    header = read_pickled(MemoryFile(data), 8)
    assert [tensor.name for tensor in header.tensors] == names
    assert header.omitted[0][1:3] == (30_000, 30_000)
