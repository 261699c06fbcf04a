"""Locates the largest values of a run while its tensors are computed, so that none has to be kept."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from analyzers.numerics.formats import FP16, FP16_OVERFLOW, FP16_UNDERFLOW
from analyzers.precision_variants.fp16_passport import Extreme, Fp16Passport, Gradients, answered, bits
from analyzers.precision_variants.measurements import Reference, Variant
from analyzers.precision_variants.model_parts import ModelParts
from analyzers.precision_variants.reductions import chunks, read

INPUT = " input"
"""What enters a module has its name and this."""

Decode = Callable[[Sequence[int]], str]

_LARGEST_EXPONENT = 40
_EXCERPT_TOKENS, _EXCERPT_CHARACTERS = 12, 60
_OUTSIDE = ("embeddings", "final norm", "logits")


@dataclass(frozen=True, slots=True)
class Spot:
    """The largest |x| of a tensor. index: of the flat tensor."""

    layer: int
    name: str
    value: float
    shape: tuple[int, ...]
    index: int


@dataclass(slots=True)
class Spots:
    """The largest value of all tensors so far, and that of the first tensor, in the order computed, that overflows fp16."""

    largest: Spot | None = None
    first: Spot | None = None

    def add(self, named: Sequence[tuple[int, str, Tensor]], peaks: Sequence[float]) -> None:
        """Include tensors, all finite, with their layers, names and largest magnitudes."""
        most = max(range(len(peaks)), key=peaks.__getitem__, default=None)
        if most is not None and peaks[most] > (abs(self.largest.value) if self.largest else 0.0):
            self.largest = _spot(*named[most])
        over = next((number for number, peak in enumerate(peaks) if peak >= FP16_OVERFLOW), None)
        if over is not None and self.first is None:
            self.first = _spot(*named[over])


def _spot(layer: int, name: str, tensor: Tensor) -> Spot:
    flat = tensor.detach().reshape(-1)
    ends = torch.stack([flat.argmax(), flat.argmin()])
    (high, low), values = ends.tolist(), flat[ends].tolist()
    index, value = (high, values[0]) if values[0] >= -values[1] else (low, values[1])
    return Spot(layer, name, value, tuple(tensor.shape), index)


@dataclass(frozen=True, slots=True)
class Located:
    """Facts of an fp32 run for the passport. first: the first value that overflows; not_called: see `fp16_passport.Fp16Passport`."""

    forward: Extreme
    backward: Gradients
    first: Extreme | None
    not_called: tuple[str, ...]

    @classmethod
    def of(
        cls, anatomy: ModelParts, forward: Spots, backward: Spots, tokens: torch.Size, tensors: Iterable[Tensor], idle: Sequence[str]
    ) -> "Located":
        """tokens: (rows, length) of those that ran; tensors: gradients; idle: modules within layers that did not run."""
        named = anatomy.model.named_modules()
        elsewhere = dict.fromkeys(".".join(name.split(".")[:2]) for name, each in named if each._parameters and each not in anatomy.roles)
        largest, gradient = (_extreme(each.largest, anatomy, *tokens) or Extreme() for each in (forward, backward))
        first = _extreme(forward.first, anatomy, *tokens)
        return cls(largest, gradients(gradient, tensors), first, (*idle, *elsewhere))

    def passport(
        self, reference: Reference, variants: Mapping[str, Variant], token_ids: Sequence[Sequence[int]], cut: bool, decode: Decode | None
    ) -> Fp16Passport:
        """Answer. decode: of tokens to text; None for tokens that come from none."""

        def read(found: Extreme) -> Extreme:
            return found if decode is None else _with_excerpt(found, token_ids, decode)

        measured = Fp16Passport(
            verdict=None,
            texts=len(token_ids),
            tokens=sum(len(row) - 1 for row in token_ids),
            cut=cut,
            weights=Extreme(),
            forward=read(self.forward),
            backward=self.backward.model_copy(update=read(self.backward).model_dump(include={"excerpt"})),
            first_overflow=None if self.first is None else read(self.first),
            rescale=None,
            not_called=self.not_called,
        )
        return answered(measured, reference, variants)


def _extreme(spot: Spot | None, anatomy: ModelParts, rows: int, length: int) -> Extreme | None:
    """Name the module and the token of a spot. rows, length: of the tokens that ran."""
    if spot is None:
        return None
    modules = anatomy.inside[spot.layer] if 0 <= spot.layer < len(anatomy.layers) else {}
    within = spot.name.removesuffix(INPUT) in modules
    token = _token(spot, modules.get(spot.name.removesuffix(INPUT)), anatomy, rows, length)
    return Extreme(
        margin_bits=bits(spot.value),
        module=f"layers.{spot.layer}.{spot.name}" if within else spot.name,
        text=None if token is None else token // length,
        position=None if token is None else token % length,
        value=spot.value,
    )


def _token(spot: Spot, module: nn.Module | None, anatomy: ModelParts, rows: int, length: int) -> int | None:
    """The number of the token that the spot belongs to; None for a parameter, and where the axes may not be those of the tokens."""
    experts = anatomy.experts.get(spot.layer)
    routed = experts is not None and module in [*experts.modules()][1:]
    if routed or isinstance(module, nn.Conv1d) or (module is None and spot.name not in (*_OUTSIDE, f"layers.{spot.layer}")):
        return None
    shape = spot.shape
    if shape[:2] == (rows, length) and not (len(shape) > 3 and shape[2] == length):  # heads may come before tokens
        return spot.index // math.prod(shape[2:])
    if len(shape) == 2 and shape[0] == rows * length:
        return spot.index // shape[1]
    return None


def _with_excerpt(found: Extreme, token_ids: Sequence[Sequence[int]], decode: Decode) -> Extreme:
    """Add the text that ends with the token."""
    if found.text is None or found.position is None:
        return found
    before = token_ids[found.text][max(0, found.position + 1 - _EXCERPT_TOKENS) : found.position + 1]
    return found.model_copy(update={"excerpt": " ".join(decode(before).split())[-_EXCERPT_CHARACTERS:] or None})


def gradients(largest: Extreme, tensors: Iterable[Tensor]) -> Gradients:
    """Count what underflows. tensors: those that are counted, one at a time in memory."""
    known = largest.model_dump()
    if not largest.value:
        return Gradients(**known)
    scale = 2.0 ** min(_LARGEST_EXPONENT, math.floor(math.log2(FP16.largest / abs(largest.value))))
    counts = []
    for chunk in chunks(tensors):
        size = chunk.detach().abs()
        counts.append(torch.stack([torch.count_nonzero(size > least) for least in (0.0, FP16_UNDERFLOW, FP16_UNDERFLOW / scale)]))
    nonzero, kept, kept_scaled = map(float, np.sum(read(counts), axis=0))
    return Gradients(**known, loss_scale=scale, underflow=1 - kept / nonzero, underflow_scaled=1 - kept_scaled / nonzero)
