"""Two models in memory are counted where their tensors are, with the answer that reading them gives."""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import mantissa
from analyzers.checkpoints import stream
from analyzers.comparison import counting, reading
from analyzers.numerics import torch_kernels
from tests.differences import differences

# Functions have the names of these modules.
analyze, streams = sys.modules["analyzers.comparison.sparsity.analyze"], sys.modules["analyzers.checkpoints.reading.stream"]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp8": torch.float8_e4m3fn, "fp64": torch.float64}


def state(dtype: torch.dtype, scale: float = 0.0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    weights = {f"model.layers.{i}.mlp.up_proj.weight": torch.randn(60, 70, generator=generator) / 50 for i in range(3)}
    weights["model.norm.weight"] = torch.ones(70)
    weights["model.layers.1.mlp.up_proj.weight"][:, 3] = float("nan")
    noise = torch.Generator().manual_seed(1)
    for each in weights.values():
        each[: len(each) // 2] += scale * torch.randn(each[: len(each) // 2].shape, generator=noise)
    return {name: each.to(dtype) for name, each in weights.items()}


def asked(*sides: dict[str, torch.Tensor] | Path) -> Any:
    report = mantissa.sparsity(*sides, mode="exact").model_dump(mode="json")
    return {name: value for name, value in report.items() if name not in ("id", "timing", "requests")}


@pytest.fixture
def _in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of the CPU stay where they are, as those of a GPU do."""

    def left(checkpoints: Any, spans: Any, work: Any, names: Any, *devices: str) -> Any:
        return stream(checkpoints, spans, work, names, "cpu")

    monkeypatch.setattr(reading, "stream", left)
    monkeypatch.setattr(streams, "_READ", 1000)


@pytest.mark.parametrize(("base", "tuned"), [("bf16", "bf16"), ("fp32", "fp32"), ("fp32", "bf16"), ("fp16", "bf16"), ("fp8", "bf16")])
def test_the_answer_is_the_same(base: str, tuned: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    sides = state(DTYPES[base]), state(DTYPES[tuned], 1e-4)
    expected = asked(*sides)
    request.getfixturevalue("_in_place")
    monkeypatch.setattr(streams, "_ON_DEVICE", 1400)  # 20 of 60 rows
    in_place: Counter[bool] = Counter()
    real = counting._Counting._is_for_device

    def asked_where(self: Any, chunk: Any) -> bool:
        in_place.update([isinstance(chunk.codes, torch.Tensor)])
        return real(self, chunk)

    monkeypatch.setattr(counting._Counting, "_is_for_device", asked_where)
    assert list(differences(expected, asked(*sides), 1e-12)) == []
    assert in_place == {True: 9, False: 1}


def test_chunks_of_files_are_copied_to_a_device_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU stands for the device."""
    sides = tmp_path / "base", tmp_path / "tuned"
    for side, tensors in zip(sides, (state(torch.bfloat16), state(torch.bfloat16, 1e-4)), strict=True):
        side.mkdir()
        save_file(tensors, side / "model.safetensors")
    expected = asked(*sides)
    copied: list[int] = []

    def on_device(codes: Any, device: str) -> torch.Tensor:
        if isinstance(codes, torch.Tensor):
            return codes
        assert device == "cuda"
        copied.append(codes.nbytes)
        return torch.from_numpy(codes.view(np.int16).copy())

    monkeypatch.setattr(analyze, "choose_device", lambda *_, **__: "cuda")
    monkeypatch.setattr(reading, "stream", lambda checkpoints, spans, work, names, *_: stream(checkpoints, spans, work, names))
    monkeypatch.setattr(torch_kernels, "on_device", on_device)
    monkeypatch.setattr(counting, "_FEW", 1000)
    assert list(differences(expected, asked(*sides), 1e-12)) == []
    assert sum(copied) == 2 * 3 * 60 * 70 * 2  # the norm stays here
