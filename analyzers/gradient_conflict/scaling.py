"""Powers of two that keep the squares of gradients within float32, whatever the size of the loss: rates do not depend on them.

Axes: T tokens, F units, d width.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from analyzers.language_models.layer_capture import Block

# The largest product left[t, n] right[t, i] is brought to about 2^30. Sums of it over 2^13 tokens, squared and summed over 2^14 inputs and
# 2^15 units, stay below 2^127; products that are 2^-80 of it have squares that float32 still holds.
LARGEST = 30
# A ``right`` within 2^-24 to 2^24 is taken as it is, which spares a copy.
_AS_IT_IS = 24
# Powers of smaller numbers are taken as this: so that no factor leaves float32.
_LEAST = -70


@dataclass(frozen=True, slots=True)
class Scaling:
    """What is multiplied are gradients times 2^exponent: each ``right`` times 2^rights[its id], and left times what is left of it.

    finite: whether all numbers are.
    """

    exponent: int = 0
    rights: Mapping[int, int] = field(default_factory=dict)
    finite: bool = True

    @classmethod
    def of(cls, blocks: Sequence[Block]) -> "Scaling":
        """For blocks whose Gram matrices are to be added."""
        rights = {id(block.right): _largest(block.right) for block in blocks}
        lefts = [_largest(block.left) for block in blocks]
        if not all(map(math.isfinite, (*rights.values(), *lefts))):
            return cls(finite=False)
        powers = {key: _power(value) for key, value in rights.items()}
        most = max(_power(left) + powers[id(block.right)] for left, block in zip(lefts, blocks, strict=True))
        return cls(LARGEST - most, {key: -power for key, power in powers.items() if abs(power) > _AS_IT_IS})

    def right(self, right: Tensor, dtype: torch.dtype) -> Tensor:
        """(T, d), scaled."""
        power = self.rights.get(id(right), 0)
        return right.to(dtype) * 2.0**power if power else right.to(dtype)

    def left(self, block: Block, units: slice, dtype: torch.dtype) -> Tensor:
        """(T, n): of some units, scaled."""
        power = self.exponent - self.rights.get(id(block.right), 0)
        left = block.left[:, units].to(dtype)
        return left * 2.0**power if power else left


def _largest(numbers: Tensor) -> float:
    """Of their magnitudes; NaN if one is."""
    if not numbers.numel():
        return 0.0
    low, high = torch.aminmax(numbers)
    return float(torch.maximum(-low, high))


def _power(magnitude: float) -> int:
    """The power of two above it."""
    return max(_LEAST, math.frexp(magnitude)[1]) if magnitude else _LEAST
