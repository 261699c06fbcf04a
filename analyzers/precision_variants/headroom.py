"""The largest magnitudes of each layer and their headroom in fp16."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from analyzers.numerics.formats import FP16, FP16_OVERFLOW
from analyzers.precision_variants.measurements import Direction, Headroom, Overflow
from analyzers.precision_variants.reductions import WAITING_BYTES, largest, waiting_bytes
from analyzers.precision_variants.spots import Spots


def extremes(tensors: Sequence[Tensor]) -> list[tuple[float, int]]:
    """The largest finite |x| of each tensor, and its number of elements that are NaN or infinite."""
    peaks = iter(largest([tensor for tensor in tensors if tensor.numel()]))
    results = []
    for tensor in tensors:
        peak, nonfinite = next(peaks) if tensor.numel() else 0.0, 0
        if not math.isfinite(peak):
            finite = tensor.detach()[torch.isfinite(tensor)]
            ((peak, _),), nonfinite = extremes([finite]), tensor.numel() - finite.numel()
        results.append((peak, nonfinite))
    return results


@dataclass(slots=True)
class Peak:
    """Running maximum of |x| over finite elements. at: the tensor that has it; largest_fp16: the maximum over tensors in fp16.

    nonfinite: elements that are NaN or infinite; first: the first tensor with such elements, and their number there.
    """

    largest: float = 0.0
    largest_fp16: float = 0.0
    at: str | None = None
    nonfinite: int = 0
    first: tuple[str, int] | None = None

    def add(self, tensor: Tensor, name: str, largest: float, nonfinite: int) -> None:
        """Include a tensor and its `extremes`."""
        if largest > self.largest:
            self.largest, self.at = largest, name
        if tensor.dtype == torch.float16:
            self.largest_fp16 = max(self.largest_fp16, largest)
        if nonfinite and self.first is None:
            self.first = name, nonfinite
        self.nonfinite += nonfinite


@dataclass(slots=True)
class Peaks:
    """The peaks of one direction by layer, in the order computed. spots: where the largest are, if asked for; then all must be finite."""

    spots: Spots | None = None
    _read: dict[int, Peak] = field(default_factory=dict)
    _waiting: list[tuple[int, str, Tensor]] = field(default_factory=list)
    _bytes: float = 0.0

    def add(self, tensors: Iterable[tuple[int, str, Tensor]]) -> None:
        """Include tensors with their layers and names, in the order computed."""
        named = list(tensors)
        self._waiting += named
        self._bytes += waiting_bytes(tensor for _, _, tensor in named)
        if self._bytes > WAITING_BYTES:
            self._settle()

    def _settle(self) -> None:
        found = extremes([tensor for _, _, tensor in self._waiting])
        if self.spots is not None:
            self.spots.add(self._waiting, [peak for peak, _ in found])
        for (layer, name, tensor), extreme in zip(self._waiting, found, strict=True):
            self._read.setdefault(layer, Peak()).add(tensor, name, *extreme)
        self._waiting, self._bytes = [], 0.0

    @property
    def layers(self) -> dict[int, Peak]:
        """The peak of each layer."""
        self._settle()
        return self._read

    @property
    def overflowed(self) -> bool:
        """True if a tensor read so far has an element that is not finite."""
        return any(peak.nonfinite for peak in self._read.values())

    @property
    def finite(self) -> bool:
        """True if all elements of all tensors so far are finite."""
        return not any(peak.nonfinite for peak in self.layers.values())

    @property
    def largest(self) -> float:
        """The largest |x| of all layers."""
        return max((peak.largest for peak in self.layers.values()), default=0.0)

    @property
    def largest_fp16(self) -> float:
        """The largest |x| of all layers among tensors in fp16."""
        return max((peak.largest_fp16 for peak in self.layers.values()), default=0.0)

    def first(self, direction: Direction) -> Overflow | None:
        """The first tensor that is not finite."""
        first = next(((layer, *peak.first) for layer, peak in self.layers.items() if peak.first is not None), None)
        return None if first is None else Overflow(layer=first[0], name=first[1], direction=direction, nonfinite=first[2])


def headroom(forward: Peaks, backward: Peaks, weights: Peaks, scale: float) -> tuple[Headroom, ...]:
    """One row per layer. scale: the loss scale, still in the gradients."""
    rows, directions = [], [peaks.layers for peaks in (forward, backward, weights)]
    for layer in sorted(set().union(*directions)):
        up, down, stored = (layers.get(layer, Peak()) for layers in directions)
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
    """The first layer, forward, with a weight or an activation that overflows fp16."""
    for row in rows:
        sides: tuple[tuple[Direction, float | None, str | None], ...] = (
            ("weights", row.weights_max, row.weights_at), ("forward", row.forward_max, row.forward_at),
        )  # fmt: skip
        for direction, peak, at in sides:
            if peak is not None and peak >= FP16_OVERFLOW:
                return Overflow(layer=row.layer, name=at or "", direction=direction, nonfinite=0)
    return None


def _bits(largest: float) -> float | None:
    return math.log2(FP16.largest / largest) if largest > 0 else None
