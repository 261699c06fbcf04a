"""Models in memory are counted where their tensors are, with the answer that reading them gives."""

import sys
from collections import Counter as Numbers
from typing import Any

import pytest
import torch

import mantissa
from analyzers.checkpoints import in_memory
from analyzers.parents import count_on_device
from tests.comparison.differences import differences
from tests.numerics.readbacks import readbacks
from tests.parents.checkpoints import Tensors, model, tuned

# Functions have the names of these modules.
analyze, streams = sys.modules["analyzers.parents.analyze"], sys.modules["analyzers.checkpoints.reading.stream"]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp8": torch.float8_e4m3fn}


def damaged(tensors: Tensors) -> Tensors:
    """With values that are not finite, outliers, a block of zeros, and rows that resemble each other."""
    tensors = {name: tensor.float() for name, tensor in tensors.items()}
    tensors["model.embed_tokens.weight"][:170] = torch.sin(torch.arange(170)[:, None] / 50 + torch.arange(96) / 5) / 50
    tensors["model.embed_tokens.weight"][200:300] = 0
    tensors["model.layers.1.mlp.up_proj.weight"][:, 3] = float("nan")
    tensors["model.layers.2.mlp.up_proj.weight"][5, :9] = 3e4
    return tensors


def asked(*sides: Tensors, **options: Any) -> Any:
    report = mantissa.parents(*sides, mode="exact", **options).model_dump(mode="json")
    return {name: value for name, value in report.items() if name not in ("id", "timing", "environment")}


@pytest.fixture
def _in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of the CPU stay where they are, as those of a GPU do."""

    class InPlace(analyze.Search):  # type: ignore[name-defined, misc]
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self._device = "cpu"

    monkeypatch.setattr(analyze, "Search", InPlace)
    monkeypatch.setattr(streams, "_READ", 1000)


@pytest.mark.parametrize(
    ("child", "parent"),
    [
        ("bf16", "bf16"),
        ("fp8", "bf16"),
        *(pytest.param(*pair, marks=pytest.mark.exhaustive) for pair in (("fp32", "bf16"), ("bf16", "fp16"))),
    ],
)
def test_the_answer_is_the_same(child: str, parent: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    base, other = damaged(model(width=96)), model(seed=5, width=96)
    del other["model.layers.3.mlp.down_proj.weight"]
    kinds = DTYPES[child], DTYPES[parent], torch.bfloat16
    sides = [
        {name: tensor.to(kind) for name, tensor in side.items()} for side, kind in zip((tuned(base, 0.01), base, other), kinds, strict=True)
    ]
    expected = asked(*sides)
    request.getfixturevalue("_in_place")
    monkeypatch.setattr(streams, "_ON_DEVICE", 96 * 340)  # two pieces of 170 rows
    monkeypatch.setattr(count_on_device, "_AT_ONCE", 96 * 800)  # one piece of three sides
    in_place: Numbers[str] = Numbers()
    taken = count_on_device._Sums.take
    monkeypatch.setattr(count_on_device._Sums, "take", lambda self: in_place.update(["tensors"]) or taken(self))
    assert list(differences(expected, asked(*sides), 1e-9)) == []
    assert in_place["tensors"] == 17  # but the five norms


@pytest.mark.usefixtures("_in_place")
def test_a_tensor_is_read_back_a_few_times_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_memory.MemoryRepository, "commit", "0" * 64)
    base = {"model.layers.0.mlp.up_proj.weight": torch.randn(512, 512, generator=torch.Generator().manual_seed(0)).bfloat16()}
    waits: Numbers[str] = Numbers()
    real = count_on_device.DeviceCounter.__call__

    def counted(self: Any, span: Any, chunks: Any) -> Any:
        with readbacks() as found:
            taken = real(self, span, chunks)
        waits.update(found)
        return taken

    monkeypatch.setattr(count_on_device.DeviceCounter, "__call__", counted)
    for at_once in (1 << 15, 1 << 17):  # one piece of both sides, and four
        monkeypatch.setattr(count_on_device, "_AT_ONCE", at_once)
        waits.clear()
        asked(base, tuned(base, 0.01))
        assert waits == {"cpu": 4}  # sums; values that are kept, and which of them; signs
