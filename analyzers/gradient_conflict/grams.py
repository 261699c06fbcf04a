"""Gram matrices of per-sample gradients, one for each unit, from one backward pass; only a chunk of the gradients exists at a time.

The gradient of unit n in sample s is g_s = sum over the tokens t of s of left[t, n] right[t]. Its Gram matrix (g_s . g_r) is computed
either *direct*, from the g_s of a chunk of units, or from products between *tokens*: sum over t of s, u of r of left[t, n] K[t, u]
left[u, n] with K = right right^T, which blocks with the same right share. The gradient of a unit concatenates those of its blocks, so
that their Gram matrices add.

Axes: T tokens, S samples, F units, n units of a chunk, d width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise, product
from typing import Literal

import torch
from torch import Tensor

from analyzers.gradient_conflict.gradient_scaling import Scaling, scaled
from analyzers.gradient_conflict.weight_signs import WeightSums
from analyzers.language_models.layer_capture import Block, LayerCapture
from analyzers.language_models.model_failures import not_finite

Route = Literal["direct", "tokens"]

# An elementwise operation is bound by memory and takes about as long as this many operations in a matrix product.
_ELEMENTWISE = 16
# Matrix products are fastest if the number of units is a multiple of this.
_ALIGNED = 64
# Number of (n, S, S) matrices derived from a chunk's Grams that exist at once.
_DERIVED = 6
# A chunk of this size stays in a CPU's cache; products of fewer than `_ALIGNED` units are slow, so a chunk has at least that many.
_CACHE_BYTES = 12 << 20


@dataclass(frozen=True, eq=False, slots=True)
class Group:
    """Blocks of the same units. counts: (S,), tokens of each sample, which are contiguous. scaling: applied to the gradients."""

    blocks: tuple[Block, ...]
    counts: tuple[int, ...]
    scaling: Scaling = field(default_factory=Scaling)

    @property
    def units(self) -> int:
        """The number of units, F."""
        return self.blocks[0].left.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the computation: float32, or float64 for captures in float64."""
        return torch.promote_types(self.blocks[0].left.dtype, torch.float32)

    @property
    def device(self) -> torch.device:
        """The device of all blocks."""
        return self.blocks[0].left.device

    def rights(self) -> dict[int, Tensor]:
        """Return the rights by id: blocks with the same input share one."""
        return {id(block.right): block.right for block in self.blocks}


def groups(capture: LayerCapture, samples: int) -> list[Group]:
    """Split a capture into groups: one with all blocks of an FFN's neurons, or one for each attention projection.

    Raises InvalidCheckpoint if their gradients are not finite.
    """
    counts = tuple(torch.bincount(capture.sample, minlength=samples).tolist())
    alone = [(block,) for block in capture.blocks]
    result = [Group(blocks, counts, Scaling.of(blocks)) for blocks in ([capture.blocks] if capture.of_neurons else alone)]
    if not all(group.scaling.finite for group in result):
        raise not_finite(f"The model's gradients of layer {capture.layer}", capture.blocks[0].left.dtype)
    return result


@dataclass(slots=True)
class Cost:
    """Cost of a route. flops: multiplications and additions in matrix products; elementwise: other operations; bytes: memory traffic of
    the products.
    """

    flops: int = 0
    elementwise: int = 0
    bytes: int = 0

    @property
    def weight(self) -> int:
        """The estimated time, in flops, by which routes are compared."""
        return self.flops + _ELEMENTWISE * self.elementwise

    def add(self, times: int, rows: int, inner: int, columns: int, itemsize: int) -> None:
        """Add the cost of ``times`` products (rows, inner) @ (inner, columns)."""
        self.flops += times * 2 * rows * inner * columns
        self.bytes += times * itemsize * (rows * inner + inner * columns + rows * columns)


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan for the Gram matrices of a group: the route, the number of units in each chunk, and the cost."""

    route: Route
    chunks: tuple[int, ...]
    cost: Cost


def plan(group: Group, chunk_bytes: int, route: Literal["auto"] | Route = "auto") -> Plan:
    """Plan the requested route, or the cheaper one for "auto", in chunks of at most ``chunk_bytes`` but at least one unit."""
    routes: tuple[Route, ...] = ("direct", "tokens") if route == "auto" else (route,)
    return min((_plan(each, group, chunk_bytes) for each in routes), key=lambda plan: plan.cost.weight)


def _plan(route: Route, group: Group, chunk_bytes: int) -> Plan:
    counts, itemsize, blocks = group.counts, group.dtype.itemsize, len(group.blocks)
    samples, widths = len(counts), [block.right.shape[1] for block in group.blocks]
    widest = samples * max(widths) if route == "direct" else 2 * sum(counts)
    unit = itemsize * (widest + (blocks + _DERIVED) * samples**2)
    near = _CACHE_BYTES if group.device.type == "cpu" else chunk_bytes
    chunks = _chunks(group.units, max(1, min(chunk_bytes // unit, max(near // unit, _ALIGNED))))
    cost, tokens = Cost(), [count for count in counts if count]
    if route == "direct":  # Per-sample gradients, then all S^2 products between them.
        for width in widths:
            cost.add(group.units, samples, width, samples, itemsize)
            for units, count in product(chunks, tokens):
                cost.add(1, units, count, width, itemsize)
        return Plan(route, chunks, cost)
    # Products of each sample's tokens with its own and all later tokens, then weighted by each unit's lefts at both tokens.
    for count, remaining in zip(tokens, reversed([*accumulate(reversed(tokens))]), strict=True):
        for right in group.rights().values():
            cost.add(1, remaining, right.shape[1], count, itemsize)
        for units in chunks:
            cost.add(blocks, remaining, count, units, itemsize)
        cost.elementwise += blocks * 2 * remaining * group.units
    return Plan(route, chunks, cost)


def _chunks(units: int, most: int) -> tuple[int, ...]:
    """Return chunk sizes of at most ``most`` units, about equal; large ones are multiples of `_ALIGNED`."""
    most = max(1, min(units, most))
    most -= most % _ALIGNED if most > _ALIGNED else 0
    size = -(-units // -(-units // most))
    size += -size % _ALIGNED if size > _ALIGNED else 0
    return tuple(min(size, units - first) for first in range(0, units, size))


class Products:
    """Computation of the Gram matrices of a group, chunk by chunk."""

    def __init__(self, group: Group, planned: Plan) -> None:
        self.chunks = _slices(planned.chunks)
        self._group = group
        self._direct = planned.route == "direct"
        self._rights = {key: scaled(right, group.scaling.rights.get(key, 0), group.dtype) for key, right in group.rights().items()}
        self._rows = [(sample, rows) for sample, rows in enumerate(_slices(group.counts)) if group.counts[sample]]
        # Products of each sample with itself and all later samples only, because the matrix is symmetric.
        self._between: dict[int, list[Tensor]] = {}
        if not self._direct:
            self._between = {key: [right[rows.start :] @ right[rows].t() for _, rows in self._rows] for key, right in self._rights.items()}
        self._lengths = torch.tensor(group.counts, device=group.device)
        self._buffer: Tensor | None = None

    def grams(self, units: slice, weights: WeightSums | None = None) -> dict[str, Tensor]:
        """Return, by block, the Gram matrices (n, S, S) of ``units``, one of ``chunks``, in float32 (float64 for captures in float64).

        The gradients are scaled by 2^``group.scaling.exponent``. On the direct route the individual weights are added to ``weights``.
        """
        grams, exponent = {}, self._group.scaling.exponent
        for block in self._group.blocks:
            key = id(block.right)
            left = scaled(block.left[:, units], exponent - self._group.scaling.rights.get(key, 0), self._group.dtype)
            if self._direct:
                by_unit = self._per_sample(left, self._rights[key])
                grams[block.name] = torch.bmm(by_unit, by_unit.transpose(1, 2))
                if weights is not None:
                    weights.add(by_unit.transpose(0, 1), exponent)
            else:
                grams[block.name] = self._by_tokens(left, self._between[key])
        return grams

    def _per_sample(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the gradient of each unit in each sample, (n, S, d), in a buffer that the next call overwrites."""
        counts, numbers = self._group.counts, left.shape[1] * len(self._group.counts) * right.shape[1]
        if self._buffer is None or self._buffer.numel() < numbers:
            self._buffer = left.new_empty(numbers)
        gradients = self._buffer[:numbers].view(left.shape[1], len(counts), right.shape[1])
        by_sample = gradients.transpose(0, 1)
        if len(set(counts)) == 1 and counts[0] > 0:
            lefts, rights = left.reshape(len(counts), -1, left.shape[1]), right.reshape(len(counts), -1, right.shape[1])
            torch.bmm(lefts.transpose(1, 2), rights, out=by_sample)
            return gradients
        for sample, rows in enumerate(_slices(counts)):
            if counts[sample]:
                torch.mm(left[rows].t(), right[rows], out=by_sample[sample])
            else:
                by_sample[sample].zero_()
        return gradients

    def _by_tokens(self, left: Tensor, between: Sequence[Tensor]) -> Tensor:
        """Return Gram matrices (n, S, S) from the products between tokens."""
        samples = len(self._group.counts)
        gram = left.new_zeros(left.shape[1], samples, samples)
        for (sample, rows), products in zip(self._rows, between, strict=True):
            weighted = (products @ left[rows]).mul_(left[rows.start :])
            row = torch.segment_reduce(weighted, "sum", lengths=self._lengths[sample:], axis=0).t()
            gram[:, sample, sample:] = row
            gram[:, sample:, sample] = row
        return gram


def _slices(sizes: Sequence[int]) -> list[slice]:
    return [slice(*each) for each in pairwise(accumulate(sizes, initial=0))]
