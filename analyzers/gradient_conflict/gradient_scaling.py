"""Scaling by powers of two that keeps squared gradients within float32 for losses of any size. No rate depends on it.

Axes: T tokens, F units, d width.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from analyzers.language_models.layer_capture import Block

# The largest product left[t, n] right[t, i] is scaled to about 2^30. Sums of it over 2^13 tokens, squared and summed over 2^14 inputs and
# 2^15 units, stay below 2^127; the squares of products 2^-80 times as large are still normal numbers of float32.
LARGEST = 30
# A lower bound on the exponents of magnitudes, so that every scaling factor is within float32.
_LEAST = -70


@dataclass(frozen=True, slots=True)
class Scaling:
    """Scaling of gradients by 2^exponent before their Gram matrices: each ``right`` takes a part of the factor, its ``left`` the rest.

    rights: by id of a right, the power of two that scales it to about 1. finite: whether all numbers are finite.
    """

    exponent: int = 0
    rights: Mapping[int, int] = field(default_factory=dict)
    finite: bool = True

    @classmethod
    def of(cls, blocks: Sequence[Block]) -> "Scaling":
        """Return the common scaling of blocks whose Gram matrices are added."""
        rights = {key: _largest(right) for key, right in {id(block.right): block.right for block in blocks}.items()}
        lefts = [_largest(block.left) for block in blocks]
        if not all(map(math.isfinite, (*rights.values(), *lefts))):
            return cls(finite=False)
        powers = {key: _power(value) for key, value in rights.items()}
        most = max(_power(left) + powers[id(block.right)] for left, block in zip(lefts, blocks, strict=True))
        return cls(LARGEST - most, {key: -power for key, power in powers.items()})


def scaled(numbers: Tensor, power: int, dtype: torch.dtype) -> Tensor:
    """Return ``numbers`` times 2^power in ``dtype``; the tensor itself if nothing changes."""
    return numbers.to(dtype) * 2.0**power if power else numbers.to(dtype)


def _largest(matrix: Tensor) -> float:
    """Return the largest magnitude; NaN if the matrix contains NaN, 0 if it is empty."""
    if not matrix.numel():
        return 0.0
    low, high = torch.aminmax(matrix)
    return float(torch.maximum(-low, high))


def _power(magnitude: float) -> int:
    """Return the exponent of the next power of two above ``magnitude``, at least `_LEAST`."""
    return max(_LEAST, math.frexp(magnitude)[1]) if magnitude else _LEAST
