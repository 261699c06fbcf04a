"""The torch path counts exactly what the compiled path counts. Its code is the same on any device: here it runs on the CPU."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from analyzers.numerics import Accumulator, BitHistogram, kernels, torch_kernels
from tests.numerics.test_histogram import CASES, DTYPES, common, counted, drawn, patterns

real_count = torch_kernels.count


def on_cpu(codes: NDArray[Any], dtype: str, device: str) -> tuple[NDArray[np.int64], int, int, float]:
    """The count on the CPU in place of CUDA."""
    assert device == "cuda"
    return real_count(codes, dtype, "cpu")


def same(one: BitHistogram, other: BitHistogram) -> bool:
    """Whether both are equal, their squares but for the order in which float64 adds them up."""
    close = abs(one.squares - other.squares) * 10**13 <= other.squares
    return close and replace(one, squares=other.squares) == other


@pytest.mark.parametrize(("dtype", "name"), CASES)
def test_same_histogram(dtype: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_kernels, "count", on_cpu)
    codes = (patterns(dtype) | common(dtype))[name]
    assert same(counted(codes, dtype, "cuda"), counted(codes, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_same_histogram_over_several_updates(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_kernels, "count", on_cpu)
    one, other = Accumulator(dtype, "cuda"), Accumulator(dtype)
    for seed in range(3):
        for accumulator in (one, other):
            accumulator.update(drawn(dtype, seed, 700))
    assert same(one.take(), other.take())
    assert same(one.take(), other.take())


@pytest.mark.parametrize("name", patterns("F32"))
def test_same_magnitudes(name: str) -> None:
    codes = patterns("F32")[name]
    _, low, high, squares = real_count(codes, "F32", "cpu")
    _, *expected, expected_squares, _ = kernels.count32(
        codes, np.zeros((5, 1 << 16), np.uint32), np.zeros(1 << 19, np.uint32), np.zeros((3, 256), np.int64)
    )
    expected[0] = 0 if expected[1] == 0 else expected[0]
    assert [low, high] == expected
    assert squares == pytest.approx(expected_squares, rel=1e-13, nan_ok=True)


def test_the_device_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def to(tensor: torch.Tensor, where: Any) -> torch.Tensor:
        asked.append(str(where))
        return tensor.type(where) if isinstance(where, torch.dtype) else tensor

    monkeypatch.setattr(torch.Tensor, "to", to)
    for dtype in ("F32", "BF16", "F8_E4M3"):
        counted(drawn(dtype, 0, 10), dtype, "cuda")
    assert asked.count("cuda") == 3
