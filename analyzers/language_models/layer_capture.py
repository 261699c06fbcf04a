"""What one layer's units get and give, put together from what passed through it and the gradients that arrived.

Axes: S samples, N tokens with padding, R rows routed to experts, T tokens that have a gradient, F units, d width.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from analyzers.language_models.experts import Routed, gate_and_up
from analyzers.language_models.ffn import FFN, Attention
from analyzers.language_models.prompts import Batch
from analyzers.language_models.side_by_side import shares, side_by_side
from analyzers.numerics import layers


@dataclass(frozen=True, eq=False, slots=True)
class Block:
    """One linear map's part in the gradients of units: of unit n in sample s it is ``sum_t left[t, n] right[t]`` over the t of s.

    left: (T, F); right: (T, d), the same object for maps with the same input. largest: of the magnitudes in left (NaN if one is), where
    that is known.
    """

    name: str
    left: Tensor
    right: Tensor
    largest: float | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Brought:
    """What a layer's backward pass brings. gradient: of what came to it, None where it goes no further.

    given, gradients: what entered modules of its units, and the gradients of what they gave, (.., d) each. largest: of modules of an FFN
    the largest magnitude on the side that has its neurons, where that is known. routed: passes through experts, each with the gradients of
    its preactivation and its output. activity: as of `LayerCapture`, where that is known.
    """

    gradient: Tensor | None
    given: dict[nn.Module, Tensor]
    gradients: dict[nn.Module, Tensor]
    largest: dict[nn.Module, float] = field(default_factory=dict)
    routed: dict[nn.Module, tuple[Routed, Tensor, Tensor]] = field(default_factory=dict)
    activity: Tensor | None = None


@dataclass(frozen=True, eq=False, slots=True)
class LayerCapture:
    """What one FFN, expert or attention has after the backward pass. Tokens that have no gradient are left out.

    layer, expert: as of the unit. sample: (T,), which sample a token is of, in order. blocks: gate, up, down or up, down: a neuron's
    gradient is that of its rows in gate and up and its column in down; q, k, v, o: that of a row, each map for itself.
    activity: (S, F), sum of |activation| over a sample's tokens but the last, those without gradient too, ``tokens`` (S,) of them; for an
    expert those of them that came to it. None for attention.
    """

    layer: int
    expert: int | None
    sample: Tensor
    blocks: tuple[Block, ...]
    activity: Tensor | None
    tokens: Tensor


class Places:
    """Which sample each of the N tokens of a batch is of."""

    def __init__(self, batch: Batch) -> None:
        self.lengths = [length - 1 for length in batch.lengths]  # a last token predicts nothing
        self.width = batch.token_ids.shape[1] - 1
        self._real = (torch.arange(self.width) < torch.tensor(self.lengths)[:, None]).flatten()

    def samples(self, tokens: Tensor) -> Tensor:
        """The sample of each token, given by its number."""
        return tokens // self.width

    def real(self, device: torch.device) -> Tensor:
        """(N,), False for padding."""
        self._real = self._real.to(device)
        return self._real


def capture_dense(unit: FFN | Attention, brought: Brought, places: Places) -> LayerCapture:
    """Of an FFN or an attention that every token goes through."""
    arrived = {linear.module: brought.gradients[linear.module].flatten(0, -2) for linear in unit.maps.values()}
    # A token whose output has no gradient has none before the activation either: nothing of it remains in any product.
    deciding = [arrived[unit.maps["down"].module]] if isinstance(unit, FFN) else list(arrived.values())
    rows = _with_gradient(deciding, places.real(deciding[0].device))
    whole = len(rows) == len(deciding[0])
    taken: dict[tuple[int, torch.Size], Tensor] = {}

    def take(tensor: Tensor) -> Tensor:
        key = tensor.data_ptr(), tensor.shape
        if key not in taken:
            taken[key] = _rows(tensor.flatten(0, -2), rows)
        return taken[key]

    blocks = []
    for name, linear in unit.maps.items():
        entered, gradient = take(brought.given[linear.module]), take(arrived[linear.module])
        gradient = gradient if linear.rows is None else gradient[:, linear.rows]
        largest = brought.largest.get(linear.module) if whole else None  # what is left out may have had it
        blocks.append(Block(name, entered, gradient, largest) if name == "down" else Block(name, gradient, entered, largest))
    sample = places.samples(rows)
    tokens = torch.tensor(places.lengths, device=rows.device)
    if isinstance(unit, Attention):
        return LayerCapture(unit.layer, None, sample, tuple(blocks), None, tokens)
    activity = brought.activity
    if activity is None:
        activity = _activity(brought.given[unit.maps["down"].module].flatten(0, -2), places)
    return LayerCapture(unit.layer, None, sample, tuple(blocks), activity, tokens)


def merged(pieces: list[LayerCapture], groups: Sequence[Sequence[int]]) -> LayerCapture:
    """One unit's captures of groups of a batch as one of all of it; empties ``pieces``. groups: the numbers of each group's samples."""
    if len(pieces) == 1:
        return pieces.pop()
    layer, expert, names = pieces[0].layer, pieces[0].expert, [block.name for block in pieces[0].blocks]
    of_sample: dict[int, tuple[int, slice]] = {}
    for number, (piece, group) in enumerate(zip(pieces, groups, strict=True)):
        ends = torch.bincount(piece.sample, minlength=len(group)).cumsum(0).tolist()
        of_sample |= {sample: (number, slice(*rows)) for sample, rows in zip(group, pairwise([0, *ends]), strict=True)}
    places = [of_sample[sample] for sample in range(len(of_sample))]
    counts = torch.tensor([rows.stop - rows.start for _, rows in places])
    sample = torch.repeat_interleave(counts).to(pieces[0].sample.device)
    order = torch.tensor([sample for group in groups for sample in group], device=sample.device).argsort()
    activity = (
        torch.cat([piece.activity for piece in pieces if piece.activity is not None])[order] if pieces[0].activity is not None else None
    )
    tokens = torch.cat([piece.tokens for piece in pieces])[order]
    largest = [_largest([piece.blocks[number].largest for piece in pieces]) for number in range(len(names))]
    keys = [(id(block.left), id(block.right)) for block in pieces[0].blocks]
    parts: dict[int, list[Tensor]] = {}
    for number, each in enumerate(keys):
        for key, side in zip(each, ("left", "right"), strict=True):
            parts.setdefault(key, [getattr(piece.blocks[number], side) for piece in pieces])
    pieces.clear()

    def whole(of_groups: list[Tensor]) -> Tensor:
        return torch.cat([of_groups[number][rows] for number, rows in places])

    wholes = {key: whole(parts.pop(key)) for key in list(parts)}  # nothing else holds the parts: they go as they are put together
    blocks = (Block(name, wholes[left], wholes[right], most) for name, (left, right), most in zip(names, keys, largest, strict=True))
    return LayerCapture(layer, expert, sample, tuple(blocks), activity, tokens)


def _largest(found: Sequence[float | None]) -> float | None:
    """Of all groups, where it is known of each; NaN where one is."""
    known = [each for each in found if each is not None]
    return float(np.max(known)) if len(known) == len(found) else None


def capture_experts(units: Iterable[FFN], routed: Routed, preactivation: Tensor, output: Tensor, places: Places) -> Iterator[LayerCapture]:
    """Of each of ``units``, experts of one layer. preactivation, output: (R, 2F), (R, d), the gradients that arrived."""
    number = len(places.lengths)
    expert_of = torch.repeat_interleave(torch.tensor(routed.counts, device=output.device))
    real = places.real(output.device)[routed.tokens]

    def split(rows: Tensor) -> list[Tensor]:
        return list(torch.split(rows, torch.bincount(expert_of[rows], minlength=len(routed.counts)).tolist()))

    for unit, every, rows in zip(units, split(real.nonzero().flatten()), split(_with_gradient([output], real)), strict=True):
        given, gradient = routed.hidden[routed.tokens[rows]], preactivation[rows]
        gate, up = (gradient[:, part] for part in gate_and_up(routed.experts))
        blocks = (Block("gate", gate, given), Block("up", up, given), Block("down", routed.activations[rows], output[rows]))
        came = places.samples(routed.tokens[every])
        magnitudes = routed.activations[every].abs().to(torch.promote_types(output.dtype, torch.float32))
        activity = magnitudes.new_zeros(number, unit.width).index_add_(0, came, magnitudes)
        tokens = torch.bincount(came, minlength=number)
        yield LayerCapture(unit.layer, unit.expert, places.samples(routed.tokens[rows]), blocks, activity, tokens)


def _with_gradient(gradients: Sequence[Tensor], real: Tensor) -> Tensor:
    """Numbers of the rows that are not zero in all of them."""
    found = torch.zeros_like(real)
    for gradient in gradients:
        found |= _any(gradient)
    return (found & real).nonzero().flatten()


def _any(rows: Tensor) -> Tensor:
    """(N,), whether a row is not zero: also NaN."""
    if _plain(rows):
        return torch.from_numpy(layers.rows_with_any(rows.numpy()))
    return (rows.amax(1) != 0) | (rows.amin(1) != 0)  # `any` takes five times as long


def _rows(tensor: Tensor, rows: Tensor) -> Tensor:
    return tensor if len(rows) == len(tensor) else tensor[rows]


def _activity(activations: Tensor, places: Places) -> Tensor:
    """(S, F) from the activations (N, F): the sum of their magnitudes over each sample's tokens."""
    kind = torch.promote_types(activations.dtype, torch.float32)

    def of_samples(numbers: slice) -> list[Tensor]:
        every = [activations[number * places.width :][: places.lengths[number]] for number in range(numbers.start, numbers.stop)]
        return [torch.from_numpy(layers.magnitudes(each.numpy())) if _plain(each) else each.abs().sum(0, dtype=kind) for each in every]

    parts = shares(len(places.lengths), activations.device)
    found = side_by_side(of_samples, parts, activations.device, len(parts))
    return torch.stack([each for part in found for each in part]).to(kind)


def _plain(rows: Tensor) -> bool:
    """Whether compiled loops take them."""
    return rows.device.type == "cpu" and rows.dtype == torch.float32 and rows.is_contiguous()
