"""A model in memory is counted where its tensors are, with the answer that reading them gives."""

from importlib import import_module
from typing import Any

import pytest
import torch

import mantissa
from analyzers.checkpoints import stream
from analyzers.numerics import Accumulator
from tests.differences import differences

# Functions have the names of these modules.
analyze, streams = import_module("analyzers.dtype.analyze"), import_module("analyzers.checkpoints.reading.stream")


def asked(state: dict[str, torch.Tensor]) -> Any:
    report = mantissa.dtype(state, mode="exact").model_dump(mode="json")
    return {name: value for name, value in report.items() if name not in ("id", "timing", "requests")}


@pytest.mark.parametrize(
    ("dtype", "columns"), [("bfloat16", 256), ("bfloat16", 200), ("float8_e4m3fn", 256), ("float32", 256), ("float16", 200)]
)
def test_the_answer_is_the_same(dtype: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    weights = {f"model.layers.{i}.mlp.up_proj.weight": torch.randn(1500, columns, generator=generator) / 50 for i in range(2)}
    weights["model.layers.1.mlp.up_proj.weight"] = (64 * weights["model.layers.1.mlp.up_proj.weight"]).to(torch.float8_e4m3fn).float() / 50
    weights["model.layers.0.mlp.up_proj.weight"][:100] = weights["model.layers.0.mlp.up_proj.weight"][:100].bfloat16().float()  # exact rows
    state = {name: each.to(getattr(torch, dtype)) for name, each in weights.items()} | {"model.norm.weight": torch.ones(70).bfloat16()}
    expected = asked(state)
    monkeypatch.setattr(analyze, "stream", lambda checkpoints, spans, work, names, *_: stream(checkpoints, spans, work, names, "cpu"))
    monkeypatch.setattr(streams, "_READ", 1000)
    monkeypatch.setattr(streams, "_ON_DEVICE", 1 << 16)
    counted: list[Any] = []
    real = Accumulator.update

    def update(self: Accumulator, codes: Any) -> None:
        counted.append(codes)
        real(self, codes)

    monkeypatch.setattr(Accumulator, "update", update)
    # The CPU adds the squares of a million fp32 values one after the other.
    differing = list(differences(expected, asked(state), 1e-9 if dtype == "float32" else 1e-12))
    # The odds of a grid are of the pieces in which a tensor is read: smaller ones are more, with scales of their own.
    assert [line for line in differing if "chance" not in line] == []
    assert sum(isinstance(codes, torch.Tensor) for codes in counted) == 2 * -(-1500 // ((1 << 16) // columns))
