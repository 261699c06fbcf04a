"""The largest numbers of each layer, and how far they are from what fp16 holds."""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from analyzers.numerics.differences import largest_pattern
from analyzers.precision_variants.report import Headroom, Overflow

FP16_MAX = 65504.0
# From here on values are rounded to infinity instead of to 65504.
FP16_OVERFLOWS = 65520.0

# How the elements of a tensor are looked at as patterns.
_PATTERNS = {
    torch.float32: (torch.int32, np.uint32),
    torch.bfloat16: (torch.int16, np.uint16),
    torch.float16: (torch.int16, np.uint16),
}


def extreme(tensor: Tensor) -> tuple[float, int]:
    """Largest finite |x|, and how many x are not finite."""
    if not tensor.numel():
        return 0.0, 0
    largest = _largest(tensor.detach())
    if math.isfinite(largest):
        return largest, 0
    finite = torch.isfinite(tensor)
    kept = tensor.detach()[finite]
    return (float(kept.abs().max()) if kept.numel() else 0.0), int(tensor.numel() - finite.sum())


def _largest(tensor: Tensor) -> float:
    """Largest |x|; infinity or NaN where one is not finite."""
    if tensor.is_cuda or tensor.dtype not in _PATTERNS:
        return float(torch.linalg.vector_norm(tensor, math.inf))
    codes, unsigned = _PATTERNS[tensor.dtype]
    pattern = largest_pattern(tensor.reshape(-1).view(codes).numpy().view(unsigned))
    if tensor.dtype == torch.float16:
        return float(np.uint16(pattern).view(np.float16))
    return float(np.uint32(pattern << 16 if tensor.dtype == torch.bfloat16 else pattern).view(np.float32))


@dataclass(slots=True)
class Peak:
    """The largest |x| so far, where it is, and how many numbers were not finite; first: where the first of those was, how many there.

    largest_fp16: among tensors in fp16.
    """

    largest: float = 0.0
    largest_fp16: float = 0.0
    at: str | None = None
    nonfinite: int = 0
    first: tuple[str, int] | None = None

    def add(self, tensor: Tensor, name: str) -> None:
        """Take in a tensor."""
        largest, nonfinite = extreme(tensor)
        if largest > self.largest:
            self.largest, self.at = largest, name
        if tensor.dtype == torch.float16:
            self.largest_fp16 = max(self.largest_fp16, largest)
        if nonfinite and self.first is None:
            self.first = name, nonfinite
        self.nonfinite += nonfinite


@dataclass(slots=True)
class Peaks:
    """Of one direction: by layer, in the order in which they came."""

    layers: dict[int, Peak] = field(default_factory=dict)

    def add(self, layer: int, tensor: Tensor, name: str) -> None:
        """Take in a tensor of a layer."""
        self.layers.setdefault(layer, Peak()).add(tensor, name)

    @property
    def finite(self) -> bool:
        """Whether everything so far is."""
        return not any(peak.nonfinite for peak in self.layers.values())

    @property
    def largest(self) -> float:
        """Over all layers."""
        return max((peak.largest for peak in self.layers.values()), default=0.0)

    @property
    def largest_fp16(self) -> float:
        """Over all layers, of tensors in fp16."""
        return max((peak.largest_fp16 for peak in self.layers.values()), default=0.0)

    def first(self, direction: str) -> Overflow | None:
        """The first place that was not finite."""
        for layer, peak in self.layers.items():
            if peak.first is not None:
                name, nonfinite = peak.first
                return Overflow.model_validate({"layer": layer, "name": name, "direction": direction, "nonfinite": nonfinite})
        return None


def headroom(forward: Peaks, backward: Peaks, weights: Peaks, scale: float) -> tuple[Headroom, ...]:
    """One row for each layer. scale: by which gradients were multiplied."""
    rows = []
    for layer in sorted(forward.layers.keys() | backward.layers.keys() | weights.layers.keys()):
        up, down, stored = (each.layers.get(layer, Peak()) for each in (forward, backward, weights))
        rows.append(
            Headroom(
                layer=layer,
                forward=_bits(up.largest),
                backward=_bits(down.largest / scale),
                weights=_bits(stored.largest),
                forward_max=up.largest or None,
                backward_max=down.largest / scale or None,
                weights_max=stored.largest or None,
                forward_at=up.at,
                backward_at=down.at,
                weights_at=stored.at,
                nonfinite=up.nonfinite,
                nonfinite_bw=down.nonfinite,
            )
        )
    return tuple(rows)


def fp16_overflow(rows: tuple[Headroom, ...]) -> Overflow | None:
    """Where 65504 is exceeded first, forward, by a weight or by what is computed."""
    for row in rows:
        if row.weights_max is not None and row.weights_max >= FP16_OVERFLOWS:
            return Overflow(layer=row.layer, name=row.weights_at or "", direction="weights", nonfinite=0)
        if row.forward_max is not None and row.forward_max >= FP16_OVERFLOWS:
            return Overflow(layer=row.layer, name=row.forward_at or "", direction="forward", nonfinite=0)
    return None


def _bits(largest: float) -> float | None:
    return math.log2(FP16_MAX / largest) if largest > 0 else None
