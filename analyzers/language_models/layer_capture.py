"""What one layer's units get and give, put together from what passed through it and the gradients that arrived.

Axes: S samples, N tokens with padding, R rows routed to experts, T tokens that have a gradient, F units, d width.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from analyzers.language_models.experts import Routed, gate_and_up
from analyzers.language_models.ffn import FFN, Attention
from analyzers.language_models.prompts import Batch
from analyzers.language_models.recording import Passed


@dataclass(frozen=True, eq=False, slots=True)
class Block:
    """One linear map's part in the gradients of units: of unit n in sample s it is ``sum_t left[t, n] right[t]`` over the t of s.

    left: (T, F); right: (T, d), the same object for maps with the same input.
    """

    name: str
    left: Tensor
    right: Tensor


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


def capture_dense(
    unit: FFN | Attention, passed: Mapping[nn.Module, Passed], gradients: Mapping[nn.Module, Tensor], places: Places
) -> LayerCapture:
    """Of an FFN or an attention that every token goes through. gradients: of what came out of each module."""
    arrived = {linear.module: gradients[linear.module].flatten(0, -2) for linear in unit.maps.values()}
    # A token whose output has no gradient has none before the activation either: nothing of it remains in any product.
    deciding = [arrived[unit.maps["down"].module]] if isinstance(unit, FFN) else list(arrived.values())
    rows = _with_gradient(deciding, places.real(deciding[0].device))
    taken: dict[tuple[int, torch.Size], Tensor] = {}

    def take(tensor: Tensor) -> Tensor:
        key = tensor.data_ptr(), tensor.shape
        if key not in taken:
            taken[key] = _rows(tensor.flatten(0, -2), rows)
        return taken[key]

    blocks = []
    for name, linear in unit.maps.items():
        given, gradient = take(passed[linear.module].given), take(arrived[linear.module])
        gradient = gradient if linear.rows is None else gradient[:, linear.rows]
        blocks.append(Block(name, given, gradient) if name == "down" else Block(name, gradient, given))
    sample = places.samples(rows)
    tokens = torch.tensor(places.lengths, device=rows.device)
    if isinstance(unit, Attention):
        return LayerCapture(unit.layer, None, sample, tuple(blocks), None, tokens)
    activations = passed[unit.maps["down"].module].given.flatten(0, -2)
    pieces = [activations[i * places.width :][:length] for i, length in enumerate(places.lengths)]
    return LayerCapture(unit.layer, None, sample, tuple(blocks), _activity(pieces), tokens)


def merged(pieces: list[LayerCapture], firsts: Sequence[int]) -> LayerCapture:
    """One unit's captures of parts of a batch as one of all of it; empties ``pieces``. firsts: the number of each part's first sample."""
    if len(pieces) == 1:
        return pieces.pop()
    layer, expert, names = pieces[0].layer, pieces[0].expert, [block.name for block in pieces[0].blocks]
    sample = torch.cat([piece.sample + first for piece, first in zip(pieces, firsts, strict=True)])
    activity = torch.cat([piece.activity for piece in pieces if piece.activity is not None]) if pieces[0].activity is not None else None
    tokens = torch.cat([piece.tokens for piece in pieces])
    keys = [(id(block.left), id(block.right)) for block in pieces[0].blocks]
    parts: dict[int, list[Tensor]] = {}
    for number, each in enumerate(keys):
        for key, side in zip(each, ("left", "right"), strict=True):
            parts.setdefault(key, [getattr(piece.blocks[number], side) for piece in pieces])
    pieces.clear()
    whole = {key: torch.cat(parts.pop(key)) for key in list(parts)}  # nothing else holds the parts: they go as they are put together
    blocks = tuple(Block(name, whole[left], whole[right]) for name, (left, right) in zip(names, keys, strict=True))
    return LayerCapture(layer, expert, sample, blocks, activity, tokens)


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
        found |= (gradient.amax(1) != 0) | (gradient.amin(1) != 0)  # NaN too; `any` takes five times as long
    return (found & real).nonzero().flatten()


def _rows(tensor: Tensor, rows: Tensor) -> Tensor:
    return tensor if len(rows) == len(tensor) else tensor[rows]


def _activity(pieces: Iterable[Tensor]) -> Tensor:
    """(S, F) from the activations of each sample: the sum of their magnitudes."""
    return torch.stack([piece.abs().sum(0, dtype=torch.promote_types(piece.dtype, torch.float32)) for piece in pieces])
