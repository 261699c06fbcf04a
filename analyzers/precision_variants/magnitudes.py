"""The largest magnitudes of a run by layer, with their headroom in fp16, and of the reference where they are."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from analyzers.numerics.formats import FP16, FP16_OVERFLOW
from analyzers.precision_variants.fp16_passport import AT_RISK_BITS, Extreme, Fp16Passport, Rescale, Verdict, bits, least
from analyzers.precision_variants.measurements import Direction, Headroom, Overflow, Reference, Variant

if TYPE_CHECKING:
    from analyzers.precision_variants.run import Run

INPUT = " input"
"""What enters a module has its name and this."""
LARGEST_EXPONENT = 40
_EXCERPT_TOKENS, _EXCERPT_CHARACTERS = 12, 60

Decode = Callable[[Sequence[Sequence[int]]], list[str]]


@dataclass(frozen=True, slots=True)
class Spot:
    """The largest finite |x| of a tensor: its value, and its index in the flat tensor. nonfinite: elements that are NaN or infinite.

    inside: it enters or leaves a module within the layer; by_token: its axes may be those of the tokens.
    """

    layer: int
    name: str
    value: float
    nonfinite: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    index: int
    inside: bool
    by_token: bool

    @property
    def size(self) -> float:
        """|x|."""
        return abs(self.value)


class Peaks:
    """The spots of all tensors of one direction, in the order computed. located: with sign and index, where all values are finite.

    finite: whether all elements of all tensors so far are.
    """

    def __init__(self, located: bool = False) -> None:
        self.spots: list[Spot] = []
        self.finite = True
        self._located = located
        self._waiting: list[tuple[int, str, Tensor, Tensor, bool, bool]] = []

    @torch.no_grad()
    def add(self, layer: int, name: str, tensor: Tensor, inside: bool = False, by_token: bool = True) -> None:
        """Include a tensor, which operations after `settle` may overwrite. inside, by_token: as in `Spot`."""
        flat = tensor.detach().reshape(-1)
        if not flat.numel():
            return
        if self._located:
            index = flat.abs().argmax()
            found = torch.stack([flat[index].double(), index.double()])
        else:
            low, high = torch.aminmax(flat)
            found = torch.stack([torch.maximum(-low, high).double(), low.new_zeros((), dtype=torch.float64)])
        self._waiting.append((layer, name, tensor.detach(), found, inside, by_token))

    def settle(self) -> None:
        """Read what was included: once for many tensors, since a GPU finishes its work first."""
        if not self._waiting:
            return
        device = self._waiting[0][3].device
        values = torch.stack([each[3].to(device) for each in self._waiting]).tolist()
        for (layer, name, tensor, _, inside, by_token), (value, index) in zip(self._waiting, values, strict=True):
            nonfinite = 0
            if not math.isfinite(value):
                finite = tensor[torch.isfinite(tensor)]
                value, nonfinite = float(finite.abs().amax()) if finite.numel() else 0.0, tensor.numel() - finite.numel()
                self.finite = False
            self.spots.append(Spot(layer, name, value, nonfinite, tensor.dtype, tuple(tensor.shape), int(index), inside, by_token))
        self._waiting = []

    def largest(self, layer: int | None = None) -> Spot | None:
        """Return the first of the largest spots, of a layer or of all; None if all values are 0."""
        spots = (spot for spot in self.spots if spot.value and layer in (None, spot.layer))
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
                forward=bits(up.size) if up else None,
                backward=bits(gradient),
                weights=bits(stored.size) if stored else None,
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


def passport(
    run: "Run", reference: Reference, variants: Mapping[str, Variant], rows: Sequence[Sequence[int]], decode: Decode | None, cut: bool
) -> Fp16Passport:
    """Return whether the values of a model fit fp16, by the located peaks of its reference and by the variants that ran in fp16.

    rows: the tokens; decode: of tokens to texts, None if they are not a text's; cut: whether the text has more.
    """
    over = next((spot for spot in run.forward_peaks.spots if spot.size >= FP16_OVERFLOW), None)
    spots = [run.forward_peaks.largest(), run.backward_peaks.largest(), over]
    forward, backward, first = _excerpted([extreme(spot, *run.log_p.shape) for spot in spots], rows, decode)
    heaviest = max(reference.headroom, key=lambda row: row.weights_max or 0.0)
    rescale = None
    if over is not None and first.module:
        rescale = Rescale(module=first.module, factor=2.0 ** math.ceil(math.log2(2 * over.size / FP16.largest)))
    found = Fp16Passport(
        verdict=None,
        texts=len(rows),
        tokens=sum(len(row) - 1 for row in rows),
        cut=cut,
        weights=Extreme(margin_bits=heaviest.weights, module=heaviest.weights_at, value=heaviest.weights_max),
        forward=forward,
        backward=backward,
        first_overflow=None if over is None else first,
        rescale=rescale,
        not_called=tuple(run.not_called) + run.model.elsewhere,
    )
    return found.model_copy(update={"verdict": _verdict(found, variants)})


def _verdict(found: Fp16Passport, variants: Mapping[str, Variant]) -> Verdict | None:
    weight, margin = found.weights.value, least(found)
    runs = ((run, run.settings) for run in variants.values())
    plain = [run for run, its in runs if its.dtype == "fp16" and not (its.fp32 or its.autocast or its.weights)]
    if found.first_overflow is not None or (weight is not None and weight >= FP16_OVERFLOW):
        return "overflows"
    if any(run.overflow is not None or run.loss_scale is None for run in plain):
        return "overflows"
    if found.forward.value is None or margin is None:
        return None
    return "at_risk" if margin < AT_RISK_BITS else "safe"


def extreme(spot: Spot | None, rows: int, length: int) -> Extreme:
    """Name the module and the token of a spot. rows, length: of the tokens that ran."""
    if spot is None:
        return Extreme()
    token = _token(spot, rows, length) if spot.by_token else None
    return Extreme(
        margin_bits=bits(spot.value),
        module=f"layers.{spot.layer}.{spot.name}" if spot.inside else spot.name,
        text=None if token is None else token // length,
        position=None if token is None else token % length,
        value=spot.value,
    )


def _token(spot: Spot, rows: int, length: int) -> int | None:
    """Return the number of the token that the spot belongs to; None where the axes may not be those of the tokens."""
    shape = spot.shape
    if shape[:2] == (rows, length) and not (len(shape) > 3 and shape[2] == length):  # heads may come before tokens
        return spot.index // math.prod(shape[2:])
    if len(shape) == 2 and shape[0] == rows * length:
        return spot.index // shape[1]
    return None


def _excerpted(extremes: Sequence[Extreme], rows: Sequence[Sequence[int]], decode: Decode | None) -> list[Extreme]:
    """Add to each the text that ends with its token."""
    if decode is None:
        return list(extremes)
    before = []
    for each in extremes:
        end = -1 if each.text is None or each.position is None else each.position
        before.append(rows[each.text or 0][max(0, end + 1 - _EXCERPT_TOKENS) : end + 1])
    texts = [" ".join(text.split())[-_EXCERPT_CHARACTERS:] or None for text in decode(before)]
    return [each.model_copy(update={"excerpt": text}) for each, text in zip(extremes, texts, strict=True)]
