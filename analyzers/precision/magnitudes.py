"""The largest magnitudes of a run by layer, with their headroom in fp16, and whether those of the reference fit fp16.

Magnitudes of the reference are decisive: the infinities of a run in fp16 hide them. Covered are the inputs and outputs of the modules of
every layer, the embeddings, the final norm and the logits, their gradients and those of parameters; not what a module holds inside, such as
attention scores and the products within fused experts. A run in fp16 among the variants covers these too, and counts where it overflows.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from analyzers.numerics.formats import FP16, FP16_OVERFLOW
from analyzers.precision.measurements import Direction, Fp16, Headroom, Overflow, Reference, Variant, place

INPUT = " input"
"""What enters a module has its name and this."""
LARGEST_EXPONENT = 40
AT_RISK_BITS = 2.0


@dataclass(frozen=True, slots=True)
class Spot:
    """The largest finite |x| of a tensor, its ``size``. nonfinite: elements that are NaN or infinite."""

    layer: int
    name: str
    size: float
    nonfinite: int
    dtype: torch.dtype


class Peaks:
    """The spots of all tensors of one direction, in the order computed. finite: whether all elements of all tensors so far are."""

    def __init__(self) -> None:
        self.spots: list[Spot] = []
        self.finite = True
        self._waiting: list[tuple[int, str, Tensor, Tensor]] = []

    @torch.no_grad()
    def add(self, layer: int, name: str, tensor: Tensor) -> None:
        """Include a tensor, which operations after `settle` may overwrite."""
        if tensor.numel():
            low, high = torch.aminmax(tensor.detach())
            self._waiting.append((layer, name, tensor.detach(), torch.maximum(-low, high).double()))

    def settle(self) -> None:
        """Read what was included: once for many tensors, since a GPU finishes its work first."""
        if not self._waiting:
            return
        device = self._waiting[0][3].device
        values = torch.stack([each[3].to(device) for each in self._waiting]).tolist()
        for (layer, name, tensor, _), value in zip(self._waiting, values, strict=True):
            nonfinite = 0
            if not math.isfinite(value):
                finite = tensor[torch.isfinite(tensor)]
                value, nonfinite = float(finite.abs().amax()) if finite.numel() else 0.0, tensor.numel() - finite.numel()
                self.finite = False
            self.spots.append(Spot(layer, name, value, nonfinite, tensor.dtype))
        self._waiting = []

    def largest(self, layer: int | None = None) -> Spot | None:
        """Return the first of the largest spots, of a layer or of all; None if all values are 0."""
        spots = (spot for spot in self.spots if spot.size and layer in (None, spot.layer))
        return max(spots, key=lambda spot: spot.size, default=None)

    def largest_fp16(self) -> float:
        """Return the largest |x| among tensors in fp16."""
        return max((spot.size for spot in self.spots if spot.dtype == torch.float16), default=0.0)

    def nonfinite(self, layer: int) -> int:
        """Count the elements of a layer that are NaN or infinite."""
        return sum(spot.nonfinite for spot in self.spots if spot.layer == layer)

    def first(self, direction: Direction) -> Overflow | None:
        """Return the first tensor that is not finite."""
        spot = next((spot for spot in self.spots if spot.nonfinite), None)
        return None if spot is None else Overflow(layer=spot.layer, name=spot.name, direction=direction, nonfinite=spot.nonfinite)


def headroom(forward: Peaks, backward: Peaks, weights: Peaks, scale: float) -> tuple[Headroom, ...]:
    """Return one row per layer. scale: the loss scale, still in the gradients."""
    rows = []
    for layer in sorted({spot.layer for peaks in (forward, backward, weights) for spot in peaks.spots}):
        up, down, stored = (peaks.largest(layer) for peaks in (forward, backward, weights))
        gradient = down.size / scale if down else None
        rows.append(
            Headroom(
                layer=layer,
                forward=_bits(up.size if up else None),
                backward=_bits(gradient),
                weights=_bits(stored.size if stored else None),
                forward_max=up.size if up else None,
                backward_max=gradient,
                weights_max=stored.size if stored else None,
                forward_at=up.name if up else None,
                backward_at=down.name if down else None,
                weights_at=stored.name if stored else None,
                nonfinite=forward.nonfinite(layer),
                nonfinite_bw=backward.nonfinite(layer),
            )
        )
    return tuple(rows)


def _bits(size: float | None) -> float | None:
    """Return the margin of a value below the largest of fp16."""
    return math.log2(FP16.largest / size) if size else None


def fits_fp16(reference: Reference, variants: Mapping[str, Variant]) -> Fp16:
    """Return whether the values of a model fit fp16, by the headroom of its reference and by the variants that ran in fp16."""
    rows = reference.headroom
    margins = [bits for row in rows for bits in (row.forward, row.backward, row.weights) if bits is not None]
    values = ((row.layer, *each) for row in rows for each in ((row.forward_at, row.forward_max), (row.weights_at, row.weights_max)))
    over = next(((place(layer, at, reference.layers), size) for layer, at, size in values if at and size and size >= FP16_OVERFLOW), None)
    runs = ((run, run.settings) for run in variants.values())
    plain = [run for run, its in runs if its.dtype == "fp16" and not (its.fp32 or its.autocast or its.weights)]
    verdict: Literal["safe", "at_risk", "overflows"] | None
    if over is not None or any(run.overflow is not None or run.loss_scale is None for run in plain):
        verdict = "overflows"
    elif not any(row.forward for row in rows):
        verdict = None
    else:
        verdict = "at_risk" if min(margins) < AT_RISK_BITS else "safe"
    return Fp16(verdict=verdict, margin=min(margins, default=None), module=over and over[0], value=over and over[1])
