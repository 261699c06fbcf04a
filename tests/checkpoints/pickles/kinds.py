"""Lists what trainers and libraries save with torch: state dicts, TorchScript, and what lies beside weights."""

import argparse
import collections
import datetime
import enum
import io
import pathlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn


class Stage(enum.IntEnum):
    LAST = 2


@dataclass
class Settings:
    rate: float = 0.1
    stages: dict[str, Stage] = field(default_factory=lambda: {"a": Stage.LAST})
    nested: Any = None
    scale: torch.Tensor | None = None


class Attributes(dict[str, Any]):
    __getattr__ = dict.__getitem__


class Numbers(list[int]):
    pass


class Doubled(torch.Tensor):
    """A subclass of torch.Tensor with the same bytes."""


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
        "none": flat[:0], "empty": torch.empty(0, 7), "scalar": flat[9], "diagonal": matrix.diagonal(), "last": flat[-1:],
        "tied": matrix, "alias": matrix, "long": matrix.permute(1, 0).unsqueeze(1), "one_row": matrix[:1].t(),
        "overlapping": flat.as_strided((5, 4), (1, 2)), "parameter": nn.Parameter(torch.ones(3)), "buffer": nn.Buffer(torch.ones(2)),
        "grown": torch.ones(2, requires_grad=True), "noted": noted(torch.ones(2)), "subclass": torch.arange(4.0).as_subclass(Doubled),
    }  # fmt: skip


WEIGHTS = {"a.weight": torch.arange(6.0).reshape(2, 3), "a.bias": torch.ones(2)}


def _resumed() -> dict[str, Any]:
    model, optimizer = trained()
    state = model.state_dict()
    return {
        "model": state, "optimizer": optimizer, "ema": {name: value + 1 for name, value in state.items()}, "recipe": Settings(),
        "np_rng_state": np.random.get_state(), "rng_state": torch.get_rng_state(), "step": torch.tensor(7),
    }  # fmt: skip


# A name, what is saved, the keys that lead to the weights in it, and the keys of other tensors.
KINDS: list[tuple[str, Any, tuple[str, ...], list[str]]] = [
    ("views", views(), (), []),
    ("ordered", collections.OrderedDict(a=torch.randn(2)), (), []),
    ("default", collections.defaultdict(dict, a={"b": torch.randn(2)}), (), []),
    ("resumed", _resumed(), ("model",), ["optimizer", "ema", "rng_state", "step"]),
    ("two_parts", {"encoder": {"w": torch.ones(2)}, "decoder": {"w": torch.randn(3)}, "optimizer": trained()[1], "step": 3},
     (), ["optimizer"]),
]  # fmt: skip

# Values without tensors that can be reached, as they lie beside weights.
BESIDE: dict[str, Any] = {
    "objects": [argparse.Namespace(lr=0.1, device=torch.device("cpu")), Settings(nested={"deep": [Settings()]}, scale=torch.ones(7))],
    "enum_as_key": {Stage.LAST: 1, (1, 2): 3, None: 4, 0.5: 6},
    "arrays": [np.float64(0.5), np.bool_(True), np.zeros(100_000), np.array(["a", "bc"]), np.array([{"a": 1}, None], dtype=object)],
    "generator": [np.random.default_rng(0), np.random.RandomState(0).get_state()],
    "date": [datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), pathlib.PurePosixPath("/tmp/x")],
    "collections": [collections.Counter("abc"), collections.deque([1, 2, 3], maxlen=5), Numbers([1, 2]), Attributes(a=1), {1, 2}],
    "callables": [noted, torch.nn.Linear, Settings().__eq__, ValueError("a")],
    "plain": [1j, bytearray(b"ab"), b"\0" * 300, slice(1, 2), range(3), 1 << 80, -1, io.BytesIO(b"extra")],
    "torch_things": [torch.Size([1]), torch.float16, torch.device("cpu"), torch.strided],
}  # fmt: skip


def programs() -> dict[str, torch.jit.ScriptModule]:
    """Return TorchScript programs."""
    plain = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Conv1d(1, 2, 1).to(torch.bfloat16)).eval()
    return {
        "scripted": torch.jit.script(plain),
        "scripted_lists": torch.jit.script(Script()),
        "traced": torch.jit.trace(plain[:2], torch.ones(1, 2)),  # type: ignore[no-untyped-call]
    }
