"""Gradients of units by sample, and their Gram matrices, for a chunk of units at a time.

The gradient of unit n in sample s is g_s = sum over the tokens t of s of left[t, n] right[t], and its Gram matrix (g_s . g_r). The gradient
of a unit concatenates those of its blocks, so that their Gram matrices add. Gradients are scaled by a power of two that keeps their squares
within float32 for losses of any size; no rate depends on it.

Axes: T tokens, S samples, F units, n units of a chunk, d width.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from analyzers.language_models.model_failures import not_finite
from analyzers.language_models.unit_gradients import Block, UnitGradients

LARGEST = 30
"""The largest product left[t, n] right[t, i] is scaled to about 2^30. Sums of it over 2^13 tokens, squared and summed over 2^14 inputs and
2^15 units, stay below 2^127; the squares of products 2^-80 times as large are still normal numbers of float32."""
_LEAST = -70  # A lower bound on the exponents of magnitudes, so that every scaling factor is within float32.
# Number of (n, S, S) matrices derived from a chunk's Grams that exist at once.
_DERIVED = 6
# A chunk of this size stays in a CPU's cache; products of fewer than `_FEWEST` units are slow, so a chunk has at least that many.
_CACHE_BYTES, _FEWEST = 12 << 20, 64


@dataclass(frozen=True, eq=False, slots=True)
class UnitGroup:
    """The neurons of one FFN or expert, with all blocks of their gradients.

    units: F. gradients: by block, from a slice of units to their gradients (n, S, d), scaled by
    2^exponent, in float32 (float64 for a model in float64). unit_bytes: of a unit in a chunk. activity, tokens: as in `UnitGradients`.
    """

    layer: int
    expert: int | None
    units: int
    gradients: Mapping[str, Callable[[slice], Tensor]]
    exponent: int
    unit_bytes: int
    on_cpu: bool
    activity: Tensor | None = None
    tokens: Tensor | None = None

    def chunks(self, most_bytes: int) -> Iterator[slice]:
        """Divide the units into chunks of at most ``most_bytes``, but at least one unit."""
        size = max(1, most_bytes // self.unit_bytes)
        if self.on_cpu:
            size = min(size, max(_FEWEST, _CACHE_BYTES // self.unit_bytes))
        return (slice(first, min(first + size, self.units)) for first in range(0, self.units, size))


def unit_group(gradients: UnitGradients, samples: int) -> UnitGroup:
    """Return the neurons of an FFN or expert. Raises InvalidCheckpoint if their gradients are not finite."""
    blocks = gradients.blocks
    present, counts = torch.unique_consecutive(gradients.sample, return_counts=True)
    ends = counts.cumsum(0).tolist()
    rows = [(sample, slice(end - count, end)) for sample, count, end in zip(present.tolist(), counts.tolist(), ends, strict=True)]
    dtype = torch.promote_types(blocks[0].left.dtype, torch.float32)
    powers = {id(block.right): _power(block.right, gradients.layer) for block in blocks}
    exponent = LARGEST - max(_power(block.left, gradients.layer) + powers[id(block.right)] for block in blocks)
    rights = {id(block.right): scaled(block.right.to(dtype), -powers[id(block.right)]) for block in blocks}

    def by_sample(block: Block, units: slice) -> Tensor:
        left, right = scaled(block.left[:, units].to(dtype), exponent + powers[id(block.right)]), rights[id(block.right)]
        result = left.new_zeros(left.shape[1], samples, right.shape[1])
        for sample, tokens in rows:
            torch.mm(left[tokens].t(), right[tokens], out=result[:, sample])
        return result

    def of_block(block: Block) -> Callable[[slice], Tensor]:
        return lambda units: by_sample(block, units)

    widest = max(block.right.shape[1] for block in blocks)
    return UnitGroup(
        layer=gradients.layer,
        expert=gradients.expert,
        units=blocks[0].left.shape[1],
        gradients={block.name: of_block(block) for block in blocks},
        exponent=exponent,
        unit_bytes=unit_bytes(dtype, samples, widest, len(blocks)),
        on_cpu=not blocks[0].left.is_cuda,
        activity=gradients.activity,
        tokens=gradients.tokens,
    )


def held_group(layer: int, expert: int | None, gradients: Mapping[str, Tensor]) -> UnitGroup:
    """Return the group of gradients that are held in memory, (S, d, F) by block. Raises InvalidCheckpoint if they are not finite."""
    first = next(iter(gradients.values()))
    dtype = torch.promote_types(first.dtype, torch.float32)
    exponent = LARGEST - max(_power(each, layer) for each in gradients.values())

    def of_block(gradient: Tensor) -> Callable[[slice], Tensor]:
        return lambda units: scaled(gradient[:, :, units].to(dtype), exponent).permute(2, 0, 1).contiguous()

    return UnitGroup(
        layer=layer,
        expert=expert,
        units=first.shape[2],
        gradients={name: of_block(gradient) for name, gradient in gradients.items()},
        exponent=exponent,
        unit_bytes=unit_bytes(dtype, len(first), max(each.shape[1] for each in gradients.values()), len(gradients)),
        on_cpu=not first.is_cuda,
    )


def unit_bytes(dtype: torch.dtype, samples: int, width: int, blocks: int) -> int:
    """Return the memory of one unit in a chunk: its gradients, and the matrices derived from its Gram matrices."""
    return dtype.itemsize * (samples * width + (blocks + _DERIVED) * samples**2)


def scaled(values: Tensor, power: int) -> Tensor:
    """Return ``values`` times 2^power; the tensor itself if nothing changes."""
    return values * 2.0**power if power else values


def _power(matrix: Tensor, layer: int) -> int:
    """Return the exponent of the next power of two above the largest magnitude, at least `_LEAST`. Raises InvalidCheckpoint if it is not
    finite.
    """
    low, high = torch.aminmax(matrix) if matrix.numel() else (torch.zeros(()), torch.zeros(()))
    largest = float(torch.maximum(-low, high))
    if not math.isfinite(largest):
        raise not_finite(f"The model's gradients of layer {layer}", matrix.dtype)
    return max(_LEAST, math.frexp(largest)[1]) if largest else _LEAST
