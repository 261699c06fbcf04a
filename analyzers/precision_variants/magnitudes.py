"""The largest magnitudes of a run by layer, with their headroom in fp16, and of the reference where they are."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from analyzers.numerics.formats import FP16, FP16_OVERFLOW, FP16_UNDERFLOW
from analyzers.precision_variants.fp16_passport import Extreme, Gradients, bits
from analyzers.precision_variants.measurements import Direction, Headroom, Overflow

INPUT = " input"
"""What enters a module has its name and this."""
LARGEST_EXPONENT = 40
_EXCERPT_TOKENS, _EXCERPT_CHARACTERS = 12, 60

Decode = Callable[[Sequence[int]], str]


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


@dataclass(frozen=True, slots=True)
class Spot:
    """The largest |x| of a tensor: its value, and its index in the flat tensor. inside: it enters or leaves a module within the layer;
    by_token: its axes may be those of the tokens.
    """

    layer: int
    name: str
    value: float
    shape: tuple[int, ...]
    index: int
    inside: bool = False
    by_token: bool = True


@dataclass(slots=True)
class Peaks:
    """The peaks of one direction by layer, in the order computed. located: also find the spot of the largest value of all tensors, and of
    the first tensor that overflows fp16; all values must be finite.
    """

    located: bool = False
    largest_spot: Spot | None = None
    first_spot: Spot | None = None
    layers: dict[int, Peak] = field(default_factory=dict)
    _waiting: list[tuple[int, str, Tensor, Tensor, tuple[bool, bool]]] = field(default_factory=list)

    @torch.no_grad()
    def add(self, layer: int, name: str, tensor: Tensor, inside: bool = False, by_token: bool = True) -> None:
        """Include a tensor, which later operations may overwrite. inside, by_token: as in `Spot`."""
        flat = tensor.detach().reshape(-1)
        if not flat.numel():
            return
        if self.located:
            index = flat.abs().argmax()
            found = torch.stack([flat[index].double(), index.double()])
        else:
            low, high = torch.aminmax(flat)
            found = torch.stack([torch.maximum(-low, high).double(), torch.zeros((), dtype=torch.float64, device=low.device)])
        self._waiting.append((layer, name, tensor.detach(), found, (inside, by_token)))

    def settle(self) -> None:
        """Read what was included: once for many tensors, since a GPU finishes its work first."""
        if not self._waiting:
            return
        values = torch.stack([found.to(self._waiting[0][3].device) for *_, found, _ in self._waiting]).tolist()
        for (layer, name, tensor, _, place), (value, index) in zip(self._waiting, values, strict=True):
            if self.located and math.isfinite(value):
                self._locate(Spot(layer, name, value, tuple(tensor.shape), int(index), *place))
            peak, nonfinite = abs(value), 0
            if not math.isfinite(value):
                finite = tensor[torch.isfinite(tensor)]
                peak, nonfinite = float(finite.abs().amax()) if finite.numel() else 0.0, tensor.numel() - finite.numel()
            row = self.layers.setdefault(layer, Peak())
            if peak > row.largest:
                row.largest, row.at = peak, name
            if tensor.dtype == torch.float16:
                row.largest_fp16 = max(row.largest_fp16, peak)
            if nonfinite and row.first is None:
                row.first = name, nonfinite
            row.nonfinite += nonfinite
        self._waiting = []

    def _locate(self, spot: Spot) -> None:
        if abs(spot.value) > (abs(self.largest_spot.value) if self.largest_spot else 0.0):
            self.largest_spot = spot
        if self.first_spot is None and abs(spot.value) >= FP16_OVERFLOW:
            self.first_spot = spot

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
        """Return the first tensor that is not finite."""
        first = next(((layer, *peak.first) for layer, peak in self.layers.items() if peak.first is not None), None)
        return None if first is None else Overflow(layer=first[0], name=first[1], direction=direction, nonfinite=first[2])


def headroom(forward: Peaks, backward: Peaks, weights: Peaks, scale: float) -> tuple[Headroom, ...]:
    """Return one row per layer. scale: the loss scale, still in the gradients."""
    rows, directions = [], [peaks.layers for peaks in (forward, backward, weights)]
    for layer in sorted(set().union(*directions)):
        up, down, stored = (layers.get(layer, Peak()) for layers in directions)
        rows.append(
            Headroom(
                layer=layer,
                forward=bits(up.largest),
                backward=bits(down.largest / scale),
                weights=bits(stored.largest),
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
    """Return the first layer, forward, with a weight or an activation that overflows fp16."""
    for row in rows:
        sides: tuple[tuple[Direction, float | None, str | None], ...] = (
            ("weights", row.weights_max, row.weights_at), ("forward", row.forward_max, row.forward_at),
        )  # fmt: skip
        for direction, peak, at in sides:
            if peak is not None and peak >= FP16_OVERFLOW:
                return Overflow(layer=row.layer, name=at or "", direction=direction, nonfinite=0)
    return None


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


def with_excerpt(found: Extreme, token_ids: Sequence[Sequence[int]], decode: Decode) -> Extreme:
    """Add the text that ends with the token. decode: of tokens to text."""
    if found.text is None or found.position is None:
        return found
    before = token_ids[found.text][max(0, found.position + 1 - _EXCERPT_TOKENS) : found.position + 1]
    return found.model_copy(update={"excerpt": " ".join(decode(before).split())[-_EXCERPT_CHARACTERS:] or None})


class Binades:
    """Counts of nonzero fp32 gradients by the binade (2^k, 2^(k+1)] of their magnitude, from which shares that underflow follow."""

    def __init__(self) -> None:
        self._counts = torch.zeros(257, dtype=torch.int64)

    @torch.no_grad()
    def add(self, gradient: Tensor) -> None:
        """Include a gradient."""
        # The pattern below that of |x| has the exponent of the binade, whose upper end belongs to it; -1 is that of 0.
        below = (gradient.detach().float().contiguous().view(torch.int32) & 0x7FFFFFFF) - 1
        self._counts += torch.bincount((below >> 23).flatten() + 1, minlength=257).cpu()

    def shares(self, largest: Extreme) -> Gradients:
        """Return the largest gradient with the shares that underflow without and with the largest loss scale."""
        known = largest.model_dump()
        if not largest.value:
            return Gradients(**known)
        exponent = min(LARGEST_EXPONENT, math.floor(math.log2(FP16.largest / abs(largest.value))))
        nonzero, least = int(self._counts[1:].sum()), round(math.log2(FP16_UNDERFLOW)) + 127 + 1
        kept, kept_scaled = (int(self._counts[max(1, first) :].sum()) for first in (least, least - exponent))
        return Gradients(**known, loss_scale=2.0**exponent, underflow=1 - kept / nonzero, underflow_scaled=1 - kept_scaled / nonzero)
