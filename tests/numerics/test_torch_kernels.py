"""The torch path counts exactly what the compiled path counts, on a GPU if there is one, else on the CPU: its code is the same."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from analyzers.numerics import Accumulator, BitHistogram, torch_kernels
from analyzers.numerics.count_kernels import count_fp32
from tests.numerics.test_histogram import CASES, DTYPES, common, counted, drawn, patterns

WHERE = "cuda" if torch.cuda.is_available() else "cpu"
real_count = torch_kernels.count


def counting(codes: NDArray[Any], table: NDArray[np.int64], device: str) -> tuple[int, int, float, int]:
    """The count, on the CPU if there is no GPU."""
    assert device == "cuda"
    return real_count(codes, table, WHERE)


def same(one: BitHistogram, other: BitHistogram) -> bool:
    """Whether both are equal, their squares but for the order in which float64 adds them up."""
    close = abs(one.squares - other.squares) * 10**13 <= other.squares
    return close and replace(one, squares=other.squares) == other


@pytest.mark.parametrize(("dtype", "name"), CASES)
def test_same_histogram(dtype: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_kernels, "count", counting)
    codes = (patterns(dtype) | common(dtype))[name]
    assert same(counted(codes, dtype, "cuda"), counted(codes, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_same_histogram_over_several_updates(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_kernels, "count", counting)
    one, other = Accumulator(dtype, "cuda"), Accumulator(dtype)
    for seed in range(3):
        for accumulator in (one, other):
            accumulator.update(drawn(dtype, seed, 700))
    assert same(one.take(), other.take())
    assert same(one.take(), other.take())


@pytest.mark.parametrize("name", patterns("F32"))
def test_same_magnitudes(name: str) -> None:
    codes = patterns("F32")[name]
    table = np.zeros(5 << 16, dtype=np.int64)
    low, high, squares, near_overflow = count_fp32(codes, table)
    found = np.zeros_like(table)
    assert list(real_count(codes, found, WHERE)) == [low, high, pytest.approx(squares, rel=1e-13), near_overflow]
    np.testing.assert_array_equal(found, table)


def test_the_device_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def to(tensor: torch.Tensor, where: Any) -> torch.Tensor:
        asked.append(str(where))
        return tensor.type(where) if isinstance(where, torch.dtype) else tensor

    monkeypatch.setattr(torch.Tensor, "to", to)
    for dtype in ("F32", "BF16", "F8_E4M3"):
        counted(drawn(dtype, 0, 10), dtype, "cuda")
    assert asked.count("cuda") == 3
