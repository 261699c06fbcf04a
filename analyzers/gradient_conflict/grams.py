"""Gram matrices of per-sample gradients, one for each unit, from one backward pass; only a chunk of the gradients exists at a time.

The gradient of unit n in sample s is g_s = sum over the tokens t of s of left[t, n] right[t], and its Gram matrix (g_s . g_r). The gradient
of a unit concatenates those of its blocks, so that their Gram matrices add.

Axes: T tokens, S samples, F units, n units of a chunk, d width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from analyzers.gradient_conflict.gradient_scaling import Scaling, scaled
from analyzers.gradient_conflict.weight_signs import WeightSums
from analyzers.language_models.layer_capture import Block, LayerCapture
from analyzers.language_models.model_failures import not_finite

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


def chunk_sizes(group: Group, chunk_bytes: int) -> tuple[int, ...]:
    """Divide a group's units into about equal chunks of at most ``chunk_bytes``, but at least one unit; large ones are `_ALIGNED`."""
    samples, widest = len(group.counts), max(block.right.shape[1] for block in group.blocks)
    unit = group.dtype.itemsize * (samples * widest + (len(group.blocks) + _DERIVED) * samples**2)
    near = _CACHE_BYTES if group.device.type == "cpu" else chunk_bytes
    most = max(1, min(chunk_bytes // unit, max(near // unit, _ALIGNED), group.units))
    most -= most % _ALIGNED if most > _ALIGNED else 0
    size = -(-group.units // -(-group.units // most))
    size += -size % _ALIGNED if size > _ALIGNED else 0
    return tuple(min(size, group.units - first) for first in range(0, group.units, size))


class Products:
    """Computation of the Gram matrices of a group, in `chunk_sizes`."""

    def __init__(self, group: Group, chunk_bytes: int) -> None:
        self.chunks = _slices(chunk_sizes(group, chunk_bytes))
        self._group = group
        self._rights = {key: scaled(right, group.scaling.rights.get(key, 0), group.dtype) for key, right in group.rights().items()}

    def grams(self, units: slice, weights: WeightSums | None = None) -> dict[str, Tensor]:
        """Return, by block, the Gram matrices (n, S, S) of ``units``, one of ``chunks``, in float32 (float64 for captures in float64).

        The gradients are scaled by 2^``group.scaling.exponent``, and the individual weights are added to ``weights``.
        """
        grams, exponent = {}, self._group.scaling.exponent
        for block in self._group.blocks:
            key = id(block.right)
            left = scaled(block.left[:, units], exponent - self._group.scaling.rights.get(key, 0), self._group.dtype)
            by_unit = self._per_sample(left, self._rights[key])
            grams[block.name] = torch.bmm(by_unit, by_unit.transpose(1, 2))
            if weights is not None:
                weights.add(by_unit.transpose(0, 1), exponent)
            del by_unit  # freed before the next block's are computed
        return grams

    def _per_sample(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the gradient of each unit in each sample, (n, S, d)."""
        gradients = left.new_empty(left.shape[1], len(self._group.counts), right.shape[1])
        for sample, rows in enumerate(_slices(self._group.counts)):
            torch.mm(left[rows].t(), right[rows], out=gradients[:, sample])
        return gradients


def _slices(sizes: Sequence[int]) -> list[slice]:
    return [slice(*each) for each in pairwise(accumulate(sizes, initial=0))]
