"""Computes the expected update sparsity from the definitions, in float64 numpy, on files read by torch and the safetensors library."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


def load(folder: Path) -> dict[str, torch.Tensor]:
    """Load every tensor of a folder as stored."""
    found: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= load_file(path)
    for path in sorted(folder.glob("*.bin")):
        found |= torch.load(path, weights_only=True)
    return found


def values(tensor: torch.Tensor) -> Floats:
    """Return the values as they are read, in float64: as stored, but float64 rounded to fp32."""
    found: Floats = (tensor.to(torch.float32) if tensor.dtype == torch.float64 else tensor).to(torch.float64).numpy()
    return found


def bf16(x: Floats) -> Floats:
    """Round once to 8 significant bits, ties to even, without bits below 2^-133; from 2^128 on to infinity."""
    with np.errstate(all="ignore"):
        last = np.maximum(np.frexp(x)[1] - 8, -133)  # exponent of the last bit that remains
        rounded = np.ldexp(np.rint(np.ldexp(x, -last)), last)
        rounded = np.where(np.abs(rounded) >= 2.0**128, np.copysign(np.inf, x), rounded)
    return np.where(np.isfinite(x), rounded, x)


def same(a: Floats, b: Floats) -> Mask:
    """Return which elements are equal as numbers, where a NaN equals any NaN."""
    found: Mask = (a == b) | (np.isnan(a) & np.isnan(b))
    return found


def place(x: Floats) -> NDArray[np.int64]:
    """Return the positions of bf16 values among all bf16 values, with both zeros at 0."""
    patterns = np.abs(x).astype(np.float32).view(np.uint32).astype(np.int64) >> 16
    return np.where(x < 0, -patterns, patterns)


@dataclass
class Expected:
    """The expected counts and updates of a pair of tensors; ``add`` combines pairs."""

    values: int = 0
    changed: int = 0
    probe: int = 0
    differ: int = 0
    nonfinite: int = 0
    absolute: Floats = field(default_factory=lambda: np.zeros(0))
    relative: Floats = field(default_factory=lambda: np.zeros(0))
    is_changed: Mask = field(default_factory=lambda: np.zeros(0, np.bool_))
    steps: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    update_square: float = 0.0
    base_square: float = 0.0

    def add(self, other: "Expected") -> None:
        for name in ("values", "changed", "probe", "differ", "nonfinite", "update_square", "base_square"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("absolute", "relative", "is_changed", "steps"):
            setattr(self, name, np.concatenate([getattr(self, name), getattr(other, name)]))


def changed(w: Floats, v: Floats) -> Mask:
    """Return which elements changed in bf16."""
    return ~same(bf16(w), bf16(v))


def expected(base: torch.Tensor, tuned: torch.Tensor, eta: float) -> Expected:
    """Return the expected results for two tensors of one shape."""
    w, v = values(base).ravel(), values(tuned).ravel()
    differ, is_changed = ~same(w, v), changed(w, v)
    finite = np.isfinite(w) & np.isfinite(v)
    with np.errstate(invalid="ignore", over="ignore"):
        probe = np.where(finite, np.abs(v - w) > eta * np.maximum(np.abs(w), np.abs(v)), differ)
    w, v = w[finite], v[finite]
    with np.errstate(over="ignore"):
        absolute, larger = np.abs(v - w), np.maximum(np.abs(w), np.abs(v))
        squares = float((absolute**2).sum()), float((w**2).sum())
    relative = np.divide(absolute, larger, out=np.zeros_like(absolute), where=larger > 0)
    return Expected(
        differ.size, int(is_changed.sum()), int(probe.sum()), int(differ.sum()), int((~finite).sum()), absolute, relative,
        is_changed[finite], np.abs(place(bf16(w)) - place(bf16(v))), *squares,
    )  # fmt: skip


def together(base: Mapping[str, torch.Tensor], tuned: Mapping[str, torch.Tensor], eta: float = 1e-3) -> Expected:
    """Return the expected results for all tensors with the same names."""
    whole = Expected()
    for name in base:
        whole.add(expected(base[name], tuned[name], eta))
    return whole
