"""How far one tensor is from another: sums in float64 over every element, and what follows from them. Nothing is sampled or added.

All is taken of d = x - ref, which is exact, so that small errors lose no digits: x = ref + d.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from analyzers.numerics.differences import Kind, difference_sums

# Of which a compiled loop takes the sums: their name there, and how the elements are looked at as patterns.
_COMPILED: dict[torch.dtype, tuple[Kind, torch.dtype, type[np.unsignedinteger[Any]]]] = {
    torch.float32: ("fp32", torch.int32, np.uint32),
    torch.bfloat16: ("bf16", torch.int16, np.uint16),
    torch.float16: ("fp16", torch.int16, np.uint16),
}
# Elements that stay in the cache of a core, and too few for torch to wake a second one.
_CPU_CHUNK = 1 << 15
_GPU_CHUNK = 1 << 23


@dataclass(slots=True)
class Sums:
    """Over the elements at which x and ref are finite: how many, sums of ref and d, of their squares and product, and max |d|.

    nonfinite: elements of x that are not.
    """

    elements: int = 0
    finite: int = 0
    nonfinite: int = 0
    ref: float = 0.0
    d: float = 0.0
    ref_ref: float = 0.0
    d_d: float = 0.0
    ref_d: float = 0.0
    largest: float = 0.0

    def merge(self, other: "Sums") -> None:
        """Take in the sums of other elements."""
        self.elements += other.elements
        self.finite += other.finite
        self.nonfinite += other.nonfinite
        self.ref += other.ref
        self.d += other.d
        self.ref_ref += other.ref_ref
        self.d_d += other.d_d
        self.ref_d += other.ref_d
        self.largest = max(self.largest, other.largest)

    @classmethod
    def merged(cls, parts: Sequence["Sums"]) -> "Sums":
        """Of all parts together."""
        whole = cls()
        for part in parts:
            whole.merge(part)
        return whole

    @property
    def rms(self) -> float | None:
        """sqrt(mean d^2)."""
        return math.sqrt(self.d_d / self.finite) if self.finite else None

    @property
    def ref_rms(self) -> float | None:
        """sqrt(mean ref^2)."""
        return math.sqrt(self.ref_ref / self.finite) if self.finite else None

    @property
    def rms_rel(self) -> float | None:
        """rms / ref_rms: 0 where there is no error, null where ref is 0 and x is not."""
        if not self.finite or (self.ref_ref == 0 and self.d_d > 0):
            return None
        return math.sqrt(self.d_d / self.ref_ref) if self.d_d else 0.0

    @property
    def max(self) -> float | None:
        """max |d|."""
        return self.largest if self.finite else None

    @property
    def bias(self) -> float | None:
        """Mean of d."""
        return self.d / self.finite if self.finite else None

    def fit(self) -> "Fit | None":
        """Of x on ref by least squares; None where ref is constant."""
        if self.finite < 2:
            return None
        n = self.finite
        ref_mean, d_mean = self.ref / n, self.d / n
        ref_variance = self.ref_ref / n - ref_mean**2
        if ref_variance <= 1e-13 * self.ref_ref / n:  # what is left of a constant after rounding
            return None
        d_variance = max(0.0, self.d_d / n - d_mean**2)
        covariance = self.ref_d / n - ref_mean * d_mean
        x_variance = ref_variance + 2 * covariance + d_variance
        slope = 1 + covariance / ref_variance
        residual = math.sqrt(max(0.0, d_variance - covariance**2 / ref_variance))
        correlation = slope * math.sqrt(ref_variance / x_variance) if x_variance > 0 else None
        return Fit(slope, d_mean - (slope - 1) * ref_mean, correlation and max(-1.0, min(1.0, correlation)), residual)


@dataclass(frozen=True, slots=True)
class Fit:
    """x = intercept + slope ref; residual: rms of what that leaves."""

    slope: float
    intercept: float
    correlation: float | None
    residual: float


def by_sequence(x: Tensor, ref: Tensor, sequences: int, scale: float = 1.0) -> list[Sums]:
    """Of x / scale against ref, of the same number of elements: one for each sequence, where the sequences come one after the other in
    both; of all together where they do not. scale is a power of two. ref is finite, and may be on another device.
    """
    rows = 1 if x.numel() % sequences else sequences
    x, ref = x.detach().reshape(rows, -1), ref.reshape(rows, -1)
    if not x.numel():
        return [Sums() for _ in range(rows)]
    on_cpu = not (x.is_cuda or ref.is_cuda) and ref.dtype == torch.float32 and x.dtype in _COMPILED
    totals = _compiled_totals(x, ref, scale) if on_cpu else [_torch_totals(row, beside, scale) for row, beside in zip(x, ref, strict=True)]
    return [_sums_of(*each, scale) for each in zip(x, ref, totals, strict=True)]


def sums(x: Tensor, ref: Tensor, scale: float = 1.0) -> Sums:
    """The same of all elements."""
    return by_sequence(x, ref, 1, scale)[0]


def _sums_of(x: Tensor, ref: Tensor, totals: Sequence[float], scale: float) -> Sums:
    """totals: the last fields; where one is not finite, they are taken of the elements that are."""
    if all(map(math.isfinite, totals)):
        return Sums(len(x), len(x), 0, *totals)
    whole = Sums()
    for beside, d in _chunks(x, ref, scale):
        finite = torch.isfinite(d)
        count = int(finite.sum())
        kept = _sums(beside[finite], d[finite]).tolist() if count else ()
        whole.merge(Sums(len(d), count, len(d) - count, *kept))
    return whole


def _compiled_totals(x: Tensor, ref: Tensor, scale: float) -> list[list[float]]:
    """The last fields of `Sums` of each row, of fp32 and narrower values on the CPU."""
    kind, codes, unsigned = _COMPILED[x.dtype]
    found: list[list[float]] = difference_sums(x.view(codes).numpy().view(unsigned), ref.numpy(), 1 / scale, kind).tolist()
    return found


def _torch_totals(x: Tensor, ref: Tensor, scale: float) -> list[float]:
    """The same of any values anywhere."""
    found = torch.stack([_sums(beside, d) for beside, d in _chunks(x, ref, scale)])
    return [*found[:, :-1].sum(0).tolist(), float(found[:, -1].max())]


def _chunks(x: Tensor, ref: Tensor, scale: float) -> Iterator[tuple[Tensor, Tensor]]:
    """ref and d (n,) float64, piece by piece."""
    chunk = _GPU_CHUNK if x.is_cuda else _CPU_CHUNK
    for first in range(0, len(x), chunk):
        beside = ref[first : first + chunk].to(x.device).double()
        wide = x[first : first + chunk].double()
        yield beside, wide / scale - beside


def _sums(ref: Tensor, d: Tensor) -> Tensor:
    """The last fields of `Sums`. Not by dot products: a library of its own threads is slow where other programs run."""
    found = [ref.sum(), d.sum(), (ref * ref).sum()]
    product = d * d
    found += [product.sum(), torch.mul(ref, d, out=product).sum(), torch.abs(d, out=product).max()]
    return torch.stack(found)
