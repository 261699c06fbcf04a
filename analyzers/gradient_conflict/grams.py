"""Gram matrices of per-sample gradients, one for each unit, from what one backward pass brings: no gradient is kept.

The gradient of unit n in sample s is g_s = sum over the tokens t of s of left[t, n] right[t]. Its Gram matrix (g_s . g_r) is found either
*direct*, from the g_s of a few units at a time, or from products between *tokens*: sum over t of s, u of r of left[t, n] K[t, u] left[u, n]
with K = right right^T, which blocks with the same right share. The gradients of a unit's blocks stand side by side: their Grams add.

Axes: T tokens, S samples, F units, n units of a chunk, d width.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Literal

import torch
from torch import Tensor

from analyzers import limits
from analyzers.errors import InvalidCheckpoint
from analyzers.gradient_conflict import cost
from analyzers.gradient_conflict.cost import Cost, Route, Shape
from analyzers.gradient_conflict.scaling import Scaling
from analyzers.language_models.layer_capture import Block, LayerCapture

# Matrices of a multiple of this many rows multiply fastest.
_ALIGNED = 64
# (n, S, S) numbers made of a chunk's matrices before the next chunk.
_BESIDE = 6


@dataclass(frozen=True, eq=False, slots=True)
class Group:
    """Blocks of the same units, and the tokens of each sample, which stand together: counts (S,). scaling: of what is multiplied."""

    blocks: tuple[Block, ...]
    counts: tuple[int, ...]
    scaling: Scaling = field(default_factory=Scaling)

    @property
    def units(self) -> int:
        """F."""
        return self.blocks[0].left.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """What is computed in: float32, or float64 where that came in."""
        return torch.promote_types(self.blocks[0].left.dtype, torch.float32)

    def shape(self) -> Shape:
        """What `cost` asks about it."""
        known: dict[int, int] = {}
        inputs = tuple(known.setdefault(id(block.right), len(known)) for block in self.blocks)
        return Shape(self.counts, self.units, tuple(block.right.shape[1] for block in self.blocks), inputs, self.dtype.itemsize)


def groups(capture: LayerCapture, samples: int) -> list[Group]:
    """What a layer's units are made of: the blocks of an FFN's neurons together, each projection of an attention alone.

    Raises InvalidCheckpoint if their gradients are not finite.
    """
    counts = tuple(torch.bincount(capture.sample, minlength=samples).tolist())
    alone = [(block,) for block in capture.blocks]
    found = [Group(blocks, counts, Scaling.of(blocks)) for blocks in (alone if capture.activity is None else [capture.blocks])]
    if not all(group.scaling.finite for group in found):
        kind = str(capture.blocks[0].left.dtype).removeprefix("torch.")
        raise InvalidCheckpoint(f"The gradients of layer {capture.layer} are not finite in {kind}: choose another --dtype.")
    return found


@dataclass(frozen=True, slots=True)
class Plan:
    """How the Gram matrices of a group are made: the route, the units of each chunk, and what that costs."""

    route: Route
    chunks: tuple[int, ...]
    cost: Cost


def plan(group: Group, chunk_bytes: int, route: Literal["auto"] | Route = "auto") -> Plan:
    """The cheaper route, or the one asked for, in chunks for which ``chunk_bytes`` suffice (if they do for one unit)."""
    shape = group.shape()
    plans = {name: _plan(name, shape, chunk_bytes) for name in ("direct", "tokens") if route in ("auto", name)}
    return min(plans.values(), key=lambda each: each.cost.weight)


def _plan(route: Route, shape: Shape, chunk_bytes: int) -> Plan:
    samples = len(shape.counts)
    widest = samples * max(shape.widths) if route == "direct" else 2 * sum(shape.counts)
    unit = shape.itemsize * (widest + (len(shape.widths) + _BESIDE) * samples**2)
    most = max(1, min(shape.units, chunk_bytes // unit))
    most -= most % _ALIGNED if most > _ALIGNED else 0
    size = -(-shape.units // -(-shape.units // most))  # chunks of about the same size
    size += -size % _ALIGNED if size > _ALIGNED else 0
    chunks = tuple(min(size, shape.units - first) for first in range(0, shape.units, size))
    return Plan(route, chunks, (cost.direct if route == "direct" else cost.tokens)(shape, chunks))


def neuron_grams(
    group: Group,
    *,
    chunk_bytes: int = limits.GRAM_CHUNK_BYTES,
    route: Literal["auto"] | Route = "auto",
    planned: Plan | None = None,
    gradients: Callable[[str, Tensor], None] | None = None,
) -> Iterator[tuple[slice, dict[str, Tensor]]]:
    """Chunk by chunk the units it has and, by block, their Gram matrices (n, S, S): symmetric, float32 (float64 for captures in float64).

    All are of gradients times 2^``group.scaling.exponent``.

    chunk_bytes: memory for a chunk, and for products between tokens T^2 numbers besides. planned: what `plan` made of these arguments.
    gradients: called with each block's name and per-sample gradients (S, n, d), which it may overwrite; takes the direct route.
    """
    planned = planned or plan(group, chunk_bytes, "direct" if gradients is not None else route)
    if planned.route == "direct":
        yield from _direct(group, planned.chunks, gradients)
    else:
        yield from _tokens(group, planned.chunks)


def _slices(sizes: Sequence[int]) -> list[slice]:
    return [slice(*each) for each in pairwise(accumulate(sizes, initial=0))]


def _direct(
    group: Group, chunks: Sequence[int], gradients: Callable[[str, Tensor], None] | None
) -> Iterator[tuple[slice, dict[str, Tensor]]]:
    rights = _rights(group)
    for units in _slices(chunks):
        grams = {}
        for block in group.blocks:
            each = _per_sample(group.scaling.left(block, units, group.dtype), rights[id(block.right)], group.counts)
            by_unit = each.transpose(0, 1)
            grams[block.name] = _symmetric(torch.bmm(by_unit, by_unit.transpose(1, 2)))
            if gradients is not None:
                gradients(block.name, each)
        yield units, grams


def _per_sample(left: Tensor, right: Tensor, counts: Sequence[int]) -> Tensor:
    """(S, n, d): the gradient of each unit in each sample."""
    samples, equal = len(counts), len(set(counts)) == 1 and counts[0] > 0
    if equal:  # rows that lie side by side multiply fastest
        by_unit = left.reshape(samples, -1, left.shape[1]).transpose(1, 2).contiguous()
        return torch.bmm(by_unit, right.reshape(samples, -1, right.shape[1]))
    result = left.new_empty(samples, left.shape[1], right.shape[1])
    for sample, rows in enumerate(_slices(counts)):
        if counts[sample]:
            torch.mm(left[rows].t(), right[rows], out=result[sample])
        else:
            result[sample].zero_()
    return result


def _tokens(group: Group, chunks: Sequence[int]) -> Iterator[tuple[slice, dict[str, Tensor]]]:
    samples = len(group.counts)
    rows = [(sample, own) for sample, own in enumerate(_slices(group.counts)) if group.counts[sample]]
    # Of each sample with itself and all behind it: the other half of the matrix is the same.
    between = {key: [right[own.start :] @ right[own].t() for _, own in rows] for key, right in _rights(group).items()}
    lengths = torch.tensor(group.counts, device=group.blocks[0].left.device)
    for units in _slices(chunks):
        grams = {}
        for block in group.blocks:
            left = group.scaling.left(block, units, group.dtype)
            gram = left.new_zeros(left.shape[1], samples, samples)
            for (sample, own), products in zip(rows, between[id(block.right)], strict=True):
                weighed = (products @ left[own]).mul_(left[own.start :])
                row = torch.segment_reduce(weighed, "sum", lengths=lengths[sample:], axis=0).t()
                gram[:, sample, sample:] = row
                gram[:, sample:, sample] = row
            grams[block.name] = gram
        yield units, grams


def _rights(group: Group) -> dict[int, Tensor]:
    return {id(block.right): group.scaling.right(block.right, group.dtype) for block in group.blocks}


def _symmetric(gram: Tensor) -> Tensor:
    """The lower half on both sides: a product of a matrix with itself may differ there in the last bit."""
    return gram.tril_().add_(gram.tril(-1).transpose(1, 2))
