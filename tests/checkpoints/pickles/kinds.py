"""Lists what trainers and libraries save with torch: state dicts, whole modules, TorchScript, and what lies beside weights."""

import argparse
import collections
import copy
import datetime
import enum
import io
import pathlib
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from tests.checkpoints.pickles.pickled_files import UNTYPED


class Stage(enum.IntEnum):
    LAST = 2


class Bits(enum.Flag):
    LOW = 1
    HIGH = 2


@dataclass
class Settings:
    rate: float = 0.1
    stages: dict[str, Stage] = field(default_factory=lambda: {"a": Stage.LAST})
    nested: Any = None
    scale: torch.Tensor | None = None


@dataclass(slots=True)
class Slotted:
    rate: float = 0.1


class Range(NamedTuple):
    low: torch.Tensor
    high: torch.Tensor


class DictConfig(dict[str, Any]):
    """A configuration that refers to its parent, as OmegaConf's do."""

    def __init__(self, content: Any, parent: Any = None) -> None:
        super().__init__()
        self.__dict__.update(_content=content, _parent=parent, _metadata={"type": dict})


class Named(collections.OrderedDict[str, Any]):
    """A state dict of its own class."""


class Attributes(dict[str, Any]):
    __getattr__ = dict.__getitem__


class Numbers(list[int]):
    pass


class Letters(set[str]):
    pass


class Shadow:
    """An average of weights that is not a module."""

    def __init__(self) -> None:
        self.decay, self.shadow = 0.99, {"a.weight": torch.zeros(2, 3)}


class Doubled(torch.Tensor):
    """A subclass of torch.Tensor with the same bytes."""


class Average(nn.Module):
    """An average of a model, as timm and torch.optim.swa_utils wrap it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.module = copy.deepcopy(model)
        self.register_buffer("updates", torch.tensor(3))


class Net(nn.Module):
    """A module with everything that a module may have."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.model = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(4, 4), nn.TransformerEncoderLayer(4, 2, 8)])})
        self.low = nn.ModuleList([nn.Linear(3, 3, dtype=torch.bfloat16), nn.GRU(3, 2), nn.BatchNorm1d(4)])
        self.register_buffer("mask", torch.ones(2, dtype=torch.bool))
        self.register_buffer("cache", torch.zeros(9), persistent=False)
        self.register_buffer("missing", None)
        self.register_parameter("absent", None)
        self.free = nn.ParameterDict({"scale": nn.Parameter(torch.ones(3))})
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight
        self.config = DictConfig({"a": 1})
        self.plain = [torch.ones(11)]
        self.activation = nn.functional.gelu
        self.head.register_forward_hook(_hook)


class Script(nn.Module):
    """A module for TorchScript, with attributes that are not parameters."""

    offset: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 3))])
        self.tied = self.layers[0]
        self.register_buffer("offset", torch.arange(3.0))
        self.table = {"a": torch.ones(5)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        tied: torch.Tensor = self.tied(x)
        return tied + self.offset + self.table["a"].sum()


def _hook(*_: Any) -> None:
    pass


def noted(tensor: torch.Tensor) -> torch.Tensor:
    """Give a tensor an attribute."""
    tensor.note = "an attribute of its own"  # type: ignore[attr-defined]
    return tensor


def trained() -> tuple[nn.Module, dict[str, Any]]:
    """Return a model and the state of its optimizer."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters(), amsgrad=True)
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    return model, optimizer.state_dict()


def views() -> dict[str, torch.Tensor]:
    """Return views, ties, parameters and buffers."""
    flat = torch.randn(60)
    matrix = flat[10:58].view(6, 8)
    return {
        "t": matrix.t(), "expanded": flat[3:4].expand(4, 5), "expanded_scalar": flat[7].expand(2, 2), "stepped": matrix[::2, 1::3],
        "flipped": matrix.flip(0), "none": flat[:0], "empty": torch.empty(0, 7), "scalar": flat[9], "diagonal": matrix.diagonal(),
        "last": flat[-1:], "tied": matrix, "alias": matrix, "long": matrix.permute(1, 0).unsqueeze(1), "one_row": matrix[:1].t(),
        "overlapping": flat.as_strided((5, 4), (1, 2)), "parameter": nn.Parameter(torch.ones(3)), "buffer": nn.Buffer(torch.ones(2)),
        "frozen": nn.Parameter(torch.ones(3), requires_grad=False), "grown": torch.ones(2, requires_grad=True),
        "noted": noted(torch.ones(2)),
    }  # fmt: skip


WEIGHTS = {"a.weight": torch.arange(6.0).reshape(2, 3), "a.bias": torch.ones(2)}


def _lightning() -> dict[str, Any]:
    model, optimizer = trained()
    return {
        "epoch": 1, "global_step": 20, "pytorch-lightning_version": "2.4.0", "state_dict": model.state_dict(), "loops": {"fit": {"a": 1}},
        "callbacks": {"ModelCheckpoint{'monitor': None}": {"best_model_score": torch.tensor(0.5), "dirpath": pathlib.PurePosixPath("/x")}},
        "optimizer_states": [optimizer], "lr_schedulers": [{"last_epoch": 1}], "hparams_name": "kwargs",
        "hyper_parameters": {"lr": 0.1, "cfg": DictConfig({"a": 1}, DictConfig({})), "args": argparse.Namespace(a=1)},
    }  # fmt: skip


def _fairseq() -> dict[str, Any]:
    model, optimizer = trained()
    return {
        "args": argparse.Namespace(arch="transformer", data=["a"]), "model": model.state_dict(), "last_optimizer_state": optimizer,
        "optimizer_history": [{"criterion_name": "CrossEntropy", "num_updates": 7}], "extra_state": {"train_iterator": {"epoch": 3}},
    }  # fmt: skip


def _resumed() -> dict[str, Any]:
    model, optimizer = trained()
    state = model.state_dict()
    return {
        "model": state, "optimizer": optimizer, "ema": {name: value + 1 for name, value in state.items()}, "scaler": {"scale": 65536.0},
        "recipe": Settings(), "np_rng_state": np.random.get_state(), "rng_state": torch.get_rng_state(), "step": torch.tensor(7),
    }  # fmt: skip


def _parts() -> dict[str, Any]:
    model, optimizer = trained()
    return {"encoder": model, "decoder": {"w": torch.randn(3)}, "optimizer": optimizer, "optimizers": [optimizer], "step": 3}


# A name, what is saved, the keys that lead to the weights in it, and the keys of other tensors.
KINDS: list[tuple[str, Any, tuple[str, ...], list[str]]] = [
    ("views", views(), (), []),
    ("float8", {str(dtype): torch.arange(24, dtype=torch.uint8).view(dtype) for dtype in UNTYPED}, (), []),
    ("module", Net(), (), []),
    ("sequential", trained()[0], (), []),
    ("averaged", Average(Net()), (), []),
    ("module_called_model", nn.ModuleDict({"model": nn.Linear(2, 2)}), (), []),
    ("parameters", nn.ParameterDict({"a": nn.Parameter(torch.randn(3)), "b": nn.Parameter(torch.randn(2, 2))}), (), []),
    ("list", [torch.randn(2), torch.randn(3)], (), []),
    ("nested_lists", {"layers": [[torch.randn(2)], [torch.randn(3), {"w": torch.randn(1)}]], "n": (torch.randn(2),)}, (), []),
    ("whole_numbers", {0: torch.randn(2), 1: {2: torch.randn(3)}}, (), []),
    ("ordered", collections.OrderedDict(a=torch.randn(2)), (), []),
    ("default", collections.defaultdict(dict, a={"b": torch.randn(2)}), (), []),
    ("named", Named(WEIGHTS), (), []),
    ("named_with_state_dict", Named({"state_dict": WEIGHTS, "args": Settings()}), ("state_dict",), []),
    ("attributes", {"model": Attributes(WEIGHTS), "epoch": 1}, ("model",), []),
    ("subclass", {"w": torch.arange(4.0).as_subclass(Doubled)}, (), []),
    ("prompt", {"string_to_token": {"*": 265}, "string_to_param": {"*": torch.randn(2, 4)}, "name": "x", "step": 7}, (), []),
    ("lora", {"base.lora_A.weight": torch.randn(2, 4), "alpha": 8, "meta": {"r": 2}}, (), []),
    ("lightning", _lightning(), ("state_dict",), ["callbacks", "optimizer_states"]),
    ("fairseq", _fairseq(), ("model",), ["last_optimizer_state"]),
    ("resumed", _resumed(), ("model",), ["optimizer", "ema", "rng_state", "step"]),
    ("module_in_dict", {"epoch": 1, "model": Net(), "optimizer": trained()[1]}, ("model",), ["optimizer"]),
    ("no_model_but_average", {"epoch": -1, "model": None, "ema": Average(trained()[0]), "date": "2026"}, ("ema",), []),
    ("teacher", {"model": {"w": torch.randn(3)}, "teacher": {"w": torch.randn(3)}}, ("model",), ["teacher"]),
    ("average", {"state_dict": {"w": torch.randn(3)}, "ema_model": {"w": torch.randn(3)}, "args": Settings()},
     ("state_dict",), ["ema_model"]),
    ("only_average", {"ema": {"w": torch.randn(3)}, "optimizer": trained()[1]}, ("ema",), ["optimizer"]),
    ("wrapped_twice", {"state_dict": {"model": {"w": torch.randn(3)}}}, ("state_dict", "model"), []),
    ("two_parts", _parts(), (), ["optimizer", "optimizers"]),
    ("optimizer_alone", trained()[1]["state"], (), []),
    ("megatron", {"args": argparse.Namespace(a=Stage.LAST), "model": {"lm": {"w": torch.randn(3)}}, "rng_state": [torch.ones(2)]},
     ("model",), ["rng_state"]),
]  # fmt: skip

# Values without tensors that can be reached, as they lie beside weights.
BESIDE: dict[str, Any] = {
    "namespace": argparse.Namespace(lr=0.1, device=torch.device("cpu"), path=pathlib.PurePosixPath("/a"), nothing=None),
    "dataclass": Settings(nested={"deep": [Settings()]}),
    "dataclass_with_a_tensor": Settings(scale=torch.ones(7)),
    "slots": Slotted(),
    "enum": [Stage.LAST, Bits.LOW | Bits.HIGH],
    "enum_as_key": {Stage.LAST: 1, (1, 2): 3, None: 4, 0.5: 6},
    "scalars": [np.float64(0.5), np.float32(0.5), np.int64(3), np.bool_(True)],
    "array": np.arange(12, dtype=np.float32).reshape(3, 4),
    "long_array": np.zeros(100_000),
    "texts": np.array(["a", "bc"]),
    "objects": np.array([{"a": 1}, None], dtype=object),
    "records": np.zeros(3, dtype=[("x", "f4"), ("y", "i8")]),
    "dtype": np.dtype("f4"),
    "generator": [np.random.default_rng(0), np.random.RandomState(0).get_state()],
    "date": [datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), datetime.date(2026, 1, 1), datetime.timedelta(1)],
    "path": pathlib.PurePosixPath("/tmp/x"),
    "collections": [collections.defaultdict(list, {"a": [1]}), collections.Counter("abc"), collections.deque([1, 2, 3], maxlen=5)],
    "subclasses": [Numbers([1, 2]), Letters("ab"), frozenset({"a", "b"}), {1, 2}],
    "callables": [_hook, torch.nn.Linear, Settings().__eq__],
    "complex": [1j, bytearray(b"ab"), b"\0" * 300, slice(1, 2), range(3), 1 << 80, -1],
    "bytes_io": io.BytesIO(b"extra"),
    "average": Shadow(),
    "torch_things": [torch.Size([1]), torch.float16, torch.device("cpu"), torch.strided],
    "exception": ValueError("a"),
}  # fmt: skip


def programs() -> dict[str, torch.jit.ScriptModule]:
    """Return TorchScript programs."""
    plain = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Conv1d(1, 2, 1).to(torch.bfloat16)).eval()
    return {
        "scripted": torch.jit.script(plain),
        "scripted_lists": torch.jit.script(Script()),
        "traced": torch.jit.trace(plain[:2], torch.ones(1, 2)),  # type: ignore[no-untyped-call]
        "lstm": torch.jit.script(nn.LSTM(2, 3, num_layers=2)),
    }
