"""Gram matrices of per-sample gradients, one for each unit, from what one backward pass brings: no gradient is kept.

The gradient of unit n in sample s is g_s = sum over the tokens t of s of left[t, n] right[t]. Its Gram matrix (g_s . g_r) is found either
*direct*, from the g_s of a few units at a time, or from products between *tokens*: sum over t of s, u of r of left[t, n] K[t, u] left[u, n]
with K = right right^T, which blocks with the same right share. The gradients of a unit's blocks stand side by side: their Grams add.

On a processor a loop of ours goes the direct route within the caches of a core, where it also looks at every single weight.

Axes: T tokens, S samples, F units, n units of a chunk, d width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from threading import local
from typing import Literal

import torch
from torch import Tensor

from analyzers import limits
from analyzers.gradient_conflict import cost
from analyzers.gradient_conflict.cost import Cost, Route, Shape
from analyzers.gradient_conflict.scaling import Scaling, scaled
from analyzers.gradient_conflict.weights import WeightSums
from analyzers.language_models.layer_capture import Block, LayerCapture
from analyzers.language_models.not_finite import not_finite
from analyzers.language_models.side_by_side import apart, shares, side_by_side
from analyzers.numerics.gradients import Panels, WeightCounts, room_bytes, unit_grams, units_together

# Matrices of a multiple of this many rows multiply fastest.
_ALIGNED = 64
# (n, S, S) numbers made of a chunk's matrices before the next chunk.
_BESIDE = 6
# Of a processor's cache, about what a chunk may take; but with fewer units than `_ALIGNED` products are slow.
_CACHE_BYTES = 12 << 20
# What a chunk's matrices may take where a loop of ours makes them, of a multiple of so many units: enough for Python to take no time.
_COMPILED_BYTES, _TOGETHER = 4 << 20, 32
# It takes less than its products let expect, as there are no passes over memory and no small operations: measured, 4 to 25 times.
_SPARED = 12


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

    @property
    def device(self) -> torch.device:
        """Of all blocks."""
        return self.blocks[0].left.device

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
        raise not_finite(f"The model's gradients of layer {capture.layer}", capture.blocks[0].left.dtype)
    return found


@dataclass(frozen=True, slots=True)
class Plan:
    """How the Gram matrices of a group are made: the route, the units of each chunk, so many chunks ``at_once``, and what that costs.

    compiled: by `numerics.gradients`, for each chunk on one core.
    """

    route: Route
    chunks: tuple[int, ...]
    at_once: int
    cost: Cost
    compiled: bool = False


def plan(group: Group, chunk_bytes: int, route: Literal["auto"] | Route = "auto") -> Plan:
    """The cheaper route, or the one asked for, in chunks for which ``chunk_bytes`` suffice (if they do for one unit)."""
    shape, near = group.shape(), _CACHE_BYTES if group.device.type == "cpu" else chunk_bytes
    plans = {name: _plan(name, shape, chunk_bytes, near) for name in ("direct", "tokens") if route in ("auto", name)}
    if "direct" in plans and group.device.type == "cpu" and group.dtype == torch.float32:
        compiled = _compiled(shape, chunk_bytes)
        plans["direct"] = compiled if apart(group.device, compiled.at_once) else plans["direct"]
    return min(plans.values(), key=lambda each: each.cost.weight / (_SPARED if each.compiled else 1))


def _plan(route: Route, shape: Shape, chunk_bytes: int, near: int) -> Plan:
    samples = len(shape.counts)
    widest = samples * max(shape.widths) if route == "direct" else 2 * sum(shape.counts)
    unit = shape.itemsize * (widest + (len(shape.widths) + _BESIDE) * samples**2)
    chunks = _chunks(shape.units, max(1, min(chunk_bytes // unit, max(near // unit, _ALIGNED))), _ALIGNED)
    at_once = max(1, chunk_bytes // (unit * max(chunks, default=1)))
    return Plan(route, chunks, at_once, (cost.direct if route == "direct" else cost.tokens)(shape, chunks))


def _compiled(shape: Shape, chunk_bytes: int) -> Plan:
    """The direct route without any gradients in memory: with chunks for each core, if they are not too small."""
    samples = len(shape.counts)
    unit, room = shape.itemsize * (len(shape.widths) + 1) * samples**2, room_bytes(samples)
    threads = torch.get_num_threads()
    near = min(_COMPILED_BYTES, chunk_bytes // threads - room)
    most = min(near // unit, -(-shape.units // (2 * threads)))
    chunks = _chunks(shape.units, max(most, _TOGETHER), _TOGETHER)
    at_once = max(1, chunk_bytes // (unit * max(chunks, default=1) + room))
    return Plan("direct", chunks, at_once, cost.in_cache(shape, units_together()), compiled=True)


def _chunks(units: int, most: int, aligned: int) -> tuple[int, ...]:
    """Chunks of about the same size, where they are large of a multiple of ``aligned``."""
    most = max(1, min(units, most))
    most -= most % aligned if most > aligned else 0
    size = -(-units // -(-units // most))
    size += -size % aligned if size > aligned else 0
    return tuple(min(size, units - first) for first in range(0, units, size))


class Products:
    """Makes the Gram matrices of a group chunk by chunk, of which several threads may each make one at the same time."""

    def __init__(self, group: Group, planned: Plan) -> None:
        self.chunks = _slices(planned.chunks)
        self._group = group
        self._direct, self._compiled = planned.route == "direct", planned.compiled
        self._powers = {id(block.right): group.scaling.of_right(block.right, with_itself=not self._direct) for block in group.blocks}
        rights = {id(block.right): block.right for block in group.blocks}
        self._panels: dict[int, Panels] = {}
        self._rights: dict[int, Tensor] = {}
        if self._compiled:
            self._panels = {key: _panels(right.to(group.dtype), group.counts, self._powers[key]) for key, right in rights.items()}
        else:
            self._rights = {key: scaled(right, self._powers[key], group.dtype) for key, right in rights.items()}
        self._rows = [(sample, own) for sample, own in enumerate(_slices(group.counts)) if group.counts[sample]]
        # Of each sample with itself and all behind it: the other half of the matrix is the same.
        self._between: dict[int, list[Tensor]] = {}
        if not self._direct:
            self._between = {key: [right[own.start :] @ right[own].t() for _, own in self._rows] for key, right in self._rights.items()}
        self._lengths = torch.tensor(group.counts, device=group.device)
        self._room = local()

    def grams(self, units: slice, weights: WeightSums | None = None) -> dict[str, Tensor]:
        """By block, the Gram matrices (n, S, S) of ``units``, one of ``chunks``: symmetric, float32 (float64 for captures in float64).

        All are of gradients times 2^``group.scaling.exponent``. To ``weights`` the single weights are added, on the direct route.
        """
        grams, exponent = {}, self._group.scaling.exponent
        counts = WeightCounts() if self._compiled and weights is not None else None
        for block in self._group.blocks:
            key, left = id(block.right), block.left[:, units]
            power = exponent - self._powers[key]
            if self._compiled:
                grams[block.name] = self._in_cache(left, self._panels[key], power, counts)
            elif self._direct:
                by_unit = self._per_sample(scaled(left, power, self._group.dtype), self._rights[key])
                grams[block.name] = _products(by_unit)
                if weights is not None:
                    weights.add(by_unit.transpose(0, 1), exponent)
            else:
                grams[block.name] = self._by_tokens(scaled(left, power, self._group.dtype), self._between[key])
        if weights is not None and counts is not None:
            number = (units.stop - units.start) * sum(block.right.shape[1] for block in self._group.blocks)
            weights.take(counts, number, exponent)
        return grams

    def _in_cache(self, left: Tensor, panels: Panels, power: int, counts: WeightCounts | None) -> Tensor:
        """(n, S, S) of a block, from what its units get of each token, (T, n), times 2^power."""
        left = left.to(self._group.dtype)
        beside = left if left.stride(1) == 1 else left.contiguous()
        return torch.from_numpy(unit_grams(beside.numpy(), panels, 2.0**power, counts))

    def _per_sample(self, left: Tensor, right: Tensor) -> Tensor:
        """(n, S, d): the gradient of each unit in each sample, side by side as they are multiplied next; written over by the next call."""
        counts = self._group.counts
        room = self._taken(left, left.shape[1] * len(counts) * right.shape[1])
        result = room.view(left.shape[1], len(counts), right.shape[1])
        by_sample = result.transpose(0, 1)
        if len(set(counts)) == 1 and counts[0] > 0:
            torch.bmm(
                left.reshape(len(counts), -1, left.shape[1]).transpose(1, 2), right.reshape(len(counts), -1, right.shape[1]), out=by_sample
            )
            return result
        for sample, rows in enumerate(_slices(counts)):
            if counts[sample]:
                torch.mm(left[rows].t(), right[rows], out=by_sample[sample])
            else:
                by_sample[sample].zero_()
        return result

    def _taken(self, like: Tensor, numbers: int) -> Tensor:
        """Memory of this thread's, which is not asked of the system anew for each chunk."""
        room: Tensor | None = getattr(self._room, "numbers", None)
        if room is None or room.numel() < numbers:
            room = self._room.numbers = like.new_empty(numbers)
        return room[:numbers]

    def _by_tokens(self, left: Tensor, between: Sequence[Tensor]) -> Tensor:
        """(n, S, S) by way of the products between tokens."""
        samples = len(self._group.counts)
        gram = left.new_zeros(left.shape[1], samples, samples)
        for (sample, own), products in zip(self._rows, between, strict=True):
            weighed = (products @ left[own]).mul_(left[own.start :])
            row = torch.segment_reduce(weighed, "sum", lengths=self._lengths[sample:], axis=0).t()
            gram[:, sample, sample:] = row
            gram[:, sample:, sample] = row
        return gram


def _slices(sizes: Sequence[int]) -> list[slice]:
    return [slice(*each) for each in pairwise(accumulate(sizes, initial=0))]


def _panels(right: Tensor, counts: Sequence[int], power: int) -> Panels:
    """Times 2^power."""
    panels, numbers = Panels(counts, right.shape[1]), right.contiguous().numpy()

    def fill(samples: slice) -> None:
        panels.fill(numbers, 2.0**power, samples)

    parts = shares(len(counts), right.device)
    for _ in side_by_side(fill, parts, right.device, len(parts)):
        pass
    return panels


def neuron_grams(
    group: Group, *, chunk_bytes: int = limits.GRAM_CHUNK_BYTES, route: Literal["auto"] | Route = "auto", weights: WeightSums | None = None
) -> Iterator[tuple[slice, dict[str, Tensor]]]:
    """Chunk by chunk the units it has and `Products.grams` of them, one after the other.

    chunk_bytes: memory for a chunk, and for products between tokens T^2 numbers besides.
    """
    products = Products(group, plan(group, chunk_bytes, "direct" if weights is not None else route))
    for units in products.chunks:
        yield units, products.grams(units, weights)


def _products(vectors: Tensor) -> Tensor:
    """(n, S, S), symmetric: of each unit the products of its vectors (n, S, d) with one another."""
    grams = torch.bmm(vectors, vectors.transpose(1, 2))
    # The lower half on both sides: a product of a matrix with itself may differ there in the last bit.
    return grams.tril_().add_(grams.tril(-1).transpose(1, 2))
