"""Assembles the inputs and gradients of one layer's units from the inputs of its modules and the gradients of their outputs.

Axes: S samples, N tokens including padding, R rows routed to experts, T tokens that have a gradient, F units, d width.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from analyzers.language_models.ffn import FFN, Attention
from analyzers.language_models.layer_hooks import Routed, gate_and_up
from analyzers.language_models.prompts import Batch


@dataclass(frozen=True, eq=False, slots=True)
class Block:
    """One linear map's share of the unit gradients: for unit n and sample s, ``sum_t left[t, n] right[t]`` over the tokens t of s.

    left: (T, F); right: (T, d), the same object for maps with the same input.
    """

    name: str
    left: Tensor
    right: Tensor


@dataclass(frozen=True, eq=False, slots=True)
class LayerGradients:
    """The result of a layer's backward pass. of_input: the gradient of the layer's input, None if not needed.

    inputs, gradients: inputs of the units' modules and gradients of their outputs, (.., d) each. routed: passes through experts, each with
    the gradients of its preactivation and its output.
    """

    of_input: Tensor | None
    inputs: dict[nn.Module, Tensor]
    gradients: dict[nn.Module, Tensor]
    routed: dict[nn.Module, tuple[Routed, Tensor, Tensor]]


@dataclass(frozen=True, eq=False, slots=True)
class LayerCapture:
    """Inputs and gradients of one FFN, expert or attention, without tokens that have no gradient.

    layer, expert: those of the unit. sample: (T,), the sample of each token, ascending. blocks: gate, up, down or up, down: a neuron's
    gradient consists of its rows in gate and up and its column in down; q, k, v, o: a unit's gradient is its row, separately per map.
    activity: (S, F), sum of |activation| over all of a sample's tokens except the last, including tokens without gradient; ``tokens`` (S,)
    is their number. For an expert, over the tokens routed to it. None for attention, and if activations were not recorded.
    """

    layer: int
    expert: int | None
    sample: Tensor
    blocks: tuple[Block, ...]
    activity: Tensor | None
    tokens: Tensor

    @property
    def of_neurons(self) -> bool:
        """Return whether each block is a part of the same neurons; the blocks of an attention are separate units."""
        return any(block.name == "down" for block in self.blocks)


class Places:
    """Maps each of the N tokens of a batch to its sample."""

    def __init__(self, batch: Batch) -> None:
        self.lengths = [length - 1 for length in batch.lengths]  # the last token predicts nothing
        self.width = batch.token_ids.shape[1] - 1
        self._real = (torch.arange(self.width) < torch.tensor(self.lengths)[:, None]).flatten()

    def samples(self, tokens: Tensor) -> Tensor:
        """Return the sample of each token index."""
        return tokens // self.width

    def real(self, device: torch.device) -> Tensor:
        """Return (N,) bool, False for padding."""
        self._real = self._real.to(device)
        return self._real


def capture_dense(unit: FFN | Attention, layer: LayerGradients, places: Places) -> LayerCapture:
    """Build the capture of an FFN or attention that receives every token."""
    gradients = {linear.module: layer.gradients[linear.module].flatten(0, -2) for linear in unit.maps.values()}
    # A token whose output has a zero gradient also has a zero gradient before the activation, so it contributes to no product.
    deciding = [gradients[unit.maps["down"].module]] if isinstance(unit, FFN) else list(gradients.values())
    rows = _with_gradient(deciding, places.real(deciding[0].device))
    selected: dict[tuple[int, torch.Size], Tensor] = {}

    def select(tensor: Tensor) -> Tensor:
        key = tensor.data_ptr(), tensor.shape
        if key not in selected:
            selected[key] = _rows(tensor.flatten(0, -2), rows)
        return selected[key]

    blocks = []
    for name, linear in unit.maps.items():
        given, gradient = select(layer.inputs[linear.module]), select(gradients[linear.module])
        gradient = gradient if linear.rows is None else gradient[:, linear.rows]
        blocks.append(Block(name, given, gradient) if name == "down" else Block(name, gradient, given))
    sample = places.samples(rows)
    tokens = torch.tensor(places.lengths, device=rows.device)
    if isinstance(unit, Attention):
        return LayerCapture(unit.layer, None, sample, tuple(blocks), None, tokens)
    activity = _activity(layer.inputs[unit.maps["down"].module].flatten(0, -2), places)
    return LayerCapture(unit.layer, None, sample, tuple(blocks), activity, tokens)


def merged(pieces: list[LayerCapture], groups: Sequence[Sequence[int]]) -> LayerCapture:
    """Merge one unit's captures of groups of a batch; empties ``pieces``. groups: sample indices of each group."""
    if len(pieces) == 1:
        return pieces.pop()
    first, device = pieces[0], pieces[0].sample.device
    members = [torch.tensor(group, device=device) for group in groups]
    sample = torch.cat([samples[piece.sample] for samples, piece in zip(members, pieces, strict=True)])
    rows, order = sample.argsort(stable=True), torch.cat(members).argsort()
    activity = torch.cat([piece.activity for piece in pieces if piece.activity is not None])[order] if first.activity is not None else None
    tokens = torch.cat([piece.tokens for piece in pieces])[order]
    keys = [(block.name, id(block.left), id(block.right)) for block in first.blocks]
    parts: dict[int, list[Tensor]] = {}
    for number, (_, left, right) in enumerate(keys):
        parts.setdefault(left, [piece.blocks[number].left for piece in pieces])
        parts.setdefault(right, [piece.blocks[number].right for piece in pieces])
    layer, expert = first.layer, first.expert
    del first
    pieces.clear()
    wholes = {key: torch.cat(parts.pop(key))[rows] for key in list(parts)}  # nothing else refers to the parts, so each is freed immediately
    blocks = tuple(Block(name, wholes[left], wholes[right]) for name, left, right in keys)
    return LayerCapture(layer, expert, sample[rows], blocks, activity, tokens)


def capture_experts(units: Iterable[FFN], routed: Routed, preactivation: Tensor, output: Tensor, places: Places) -> Iterator[LayerCapture]:
    """Build the capture of each of ``units``, experts of one layer. preactivation, output: (R, 2F), (R, d), their gradients."""
    number = len(places.lengths)
    expert_of = torch.repeat_interleave(torch.tensor(routed.counts, device=output.device))
    real = places.real(output.device)[routed.tokens]

    def split(rows: Tensor) -> list[Tensor]:
        return list(torch.split(rows, torch.bincount(expert_of[rows], minlength=len(routed.counts)).tolist()))

    for unit, every, rows in zip(units, split(real.nonzero().flatten()), split(_with_gradient([output], real)), strict=True):
        given, gradient = routed.hidden[routed.tokens[rows]], preactivation[rows]
        gate, up = (gradient[:, part] for part in gate_and_up(routed.experts))
        blocks = (Block("gate", gate, given), Block("up", up, given), Block("down", routed.activations[rows], output[rows]))
        sample = places.samples(routed.tokens[every])
        magnitudes = routed.activations[every].abs().to(torch.promote_types(output.dtype, torch.float32))
        activity = magnitudes.new_zeros(number, unit.width).index_add_(0, sample, magnitudes)
        tokens = torch.bincount(sample, minlength=number)
        yield LayerCapture(unit.layer, unit.expert, places.samples(routed.tokens[rows]), blocks, activity, tokens)


def _with_gradient(gradients: Sequence[Tensor], real: Tensor) -> Tensor:
    """Return the indices of rows that are nonzero in at least one of ``gradients``; NaN counts as nonzero."""
    some = torch.zeros_like(real)
    for gradient in gradients:
        some |= (gradient.amax(1) != 0) | (gradient.amin(1) != 0)  # `any` takes five times as long
    return (some & real).nonzero().flatten()


def _rows(tensor: Tensor, rows: Tensor) -> Tensor:
    return tensor if len(rows) == len(tensor) else tensor[rows]


def _activity(activations: Tensor, places: Places) -> Tensor:
    """Sum the magnitudes of activations (N, F) over each sample's tokens; returns (S, F)."""
    kind = torch.promote_types(activations.dtype, torch.float32)
    samples = torch.split(activations, places.width)
    return torch.stack([each[:length].abs().sum(0, dtype=kind) for each, length in zip(samples, places.lengths, strict=True)])
