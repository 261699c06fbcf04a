"""Errors of a variant's tensors against the reference's: float64 sums over every element, with no epsilon.

All sums are over d = x - ref, so that small errors keep their digits: x = ref + d.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from analyzers.precision.measurements import Kind, TensorError

# Elements at a time. On a CPU they stay in a core's cache, and torch does not split sums of so few among threads, which would wait for each
# other longer than they add. It does split `dot`.
_CPU_CHUNK, _GPU_CHUNK = 1 << 15, 1 << 25


class Sums(NamedTuple):
    """Over the elements at which x is finite: their count, the sums of ref, d, ref^2, d^2 and ref d, and max |d|.

    nonfinite: elements of x that are NaN or infinite.
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

    @classmethod
    def of(cls, parts: Iterable["Sums"]) -> "Sums":
        """Return the sums over the elements of all parts."""
        *columns, largest = zip(cls(), *parts, strict=True)
        return cls._make([*map(sum, columns), max(largest)])

    @property
    def rms(self) -> float | None:
        """sqrt(mean d^2)."""
        return math.sqrt(self.d_d / self.finite) if self.finite else None

    @property
    def ref_rms(self) -> float | None:
        """sqrt(mean ref^2)."""
        return math.sqrt(self.ref_ref / self.finite) if self.finite else None

    @property
    def max(self) -> float | None:
        """max |d|."""
        return self.largest if self.finite else None

    @property
    def bias(self) -> float | None:
        """Mean of d."""
        return self.d / self.finite if self.finite else None

    @property
    def rms_rel(self) -> float | None:
        """rms / ref_rms: 0 without error, None where ref is all 0 and x is not."""
        if not self.finite or (self.ref_ref == 0 and self.d_d > 0):
            return None
        return math.sqrt(self.d_d / self.ref_ref) if self.d_d else 0.0

    @property
    def correlation(self) -> float | None:
        """Correlation of x and ref; None where one is constant."""
        n = self.finite
        if n < 2:
            return None
        ref_mean, d_mean = self.ref / n, self.d / n
        ref_variance = self.ref_ref / n - ref_mean**2
        if ref_variance <= 1e-13 * self.ref_ref / n:  # constant up to rounding
            return None
        d_variance = max(0.0, self.d_d / n - d_mean**2)
        covariance = self.ref_d / n - ref_mean * d_mean
        x_variance = ref_variance + 2 * covariance + d_variance
        return max(-1.0, min(1.0, (ref_variance + covariance) / math.sqrt(ref_variance * x_variance))) if x_variance > 0 else None


@torch.no_grad()
def sums(pairs: Sequence[tuple[Tensor, Tensor]], scale: float = 1.0) -> list[Sums]:
    """Return the sums of each x, divided by ``scale``, a power of two, against its ref, which is finite and may be on another device."""
    if not pairs:
        return []
    rows = torch.stack([_totals(x.reshape(-1), ref.reshape(-1), scale).to(pairs[0][0].device) for x, ref in pairs]).tolist()
    return [
        Sums(x.numel(), x.numel(), 0, *row) if all(map(math.isfinite, row)) else _finite_sums(x.reshape(-1), ref.reshape(-1), scale)
        for (x, ref), row in zip(pairs, rows, strict=True)
    ]


def _totals(x: Tensor, ref: Tensor, scale: float) -> Tensor:
    """Return the six sums of `Sums`, of x (n,) and ref (n,)."""
    total = torch.zeros(6, dtype=torch.float64, device=x.device)
    size, dot = (_GPU_CHUNK, torch.dot) if x.is_cuda else (_CPU_CHUNK, lambda a, b: (a * b).sum())
    for x_part, ref_part in zip(torch.split(x, size), torch.split(ref, size), strict=True):
        wide = ref_part.to(x.device, torch.float64)
        d = x_part.double().div_(scale).sub_(wide) if x_part.dtype != torch.float64 else x_part / scale - wide
        total[:5] += torch.stack([wide.sum(), d.sum(), dot(wide, wide), dot(d, d), dot(wide, d)])
        total[5] = torch.maximum(total[5], d.abs().amax()) if d.numel() else total[5]
    return total


def _finite_sums(x: Tensor, ref: Tensor, scale: float) -> Sums:
    finite = torch.isfinite(x)
    chosen = ref.to(x.device)[finite].double()  # in which no difference overflows
    row = _totals(x[finite].double(), chosen, scale).tolist()
    return Sums(x.numel(), len(chosen), x.numel() - len(chosen), *row)


@dataclass(frozen=True, slots=True)
class Compared:
    """Sums of one tensor."""

    kind: Kind
    name: str
    layer: int | None
    whole: Sums

    def row(self) -> TensorError:
        """Return the row of the report."""
        measures = {name: getattr(self.whole, name) for name in ("rms_rel", "rms", "max", "bias", "nonfinite", "ref_rms", "correlation")}
        return TensorError(name=self.name, kind=self.kind, layer=self.layer, **measures)
