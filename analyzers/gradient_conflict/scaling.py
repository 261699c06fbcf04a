"""Powers of two that keep the squares of gradients within float32, whatever the size of the loss: rates do not depend on them.

Axes: T tokens, F units, d width.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from analyzers.language_models.layer_capture import Block
from analyzers.language_models.side_by_side import shares, side_by_side

# The largest product left[t, n] right[t, i] is brought to about 2^30. Sums of it over 2^13 tokens, squared and summed over 2^14 inputs and
# 2^15 units, stay below 2^127; products that are 2^-80 of it have squares that float32 still holds.
LARGEST = 30
# A ``right`` within 2^-24 to 2^24 is multiplied with itself as it is, which spares a copy.
_NEAR_ONE = 24
# ``left`` within 2^-40 to 2^40 can stay as they are: what they need, their right can take. They are the larger side.
_MODERATE = 40
# Powers of smaller numbers are taken as this: so that no factor leaves float32.
_LEAST = -70


@dataclass(frozen=True, slots=True)
class Scaling:
    """What is multiplied are gradients times 2^exponent: each ``right`` times a part of it, and its ``left`` times what is left of it.

    rights: by id, the power of two that brings a right to about 1. moderate: ids of rights whose every left is of moderate size.
    finite: whether all numbers are.
    """

    exponent: int = 0
    rights: Mapping[int, int] = field(default_factory=dict)
    moderate: frozenset[int] = frozenset()
    finite: bool = True

    @classmethod
    def of(cls, blocks: Sequence[Block]) -> "Scaling":
        """For blocks whose Gram matrices are to be added."""
        of_rights = {id(block.right): block.right for block in blocks}
        unknown = [block.left for block in blocks if block.largest is None]
        found = iter(_largest([*of_rights.values(), *unknown]))
        rights = {key: next(found) for key in of_rights}
        lefts = [next(found) if block.largest is None else block.largest for block in blocks]
        if not all(map(math.isfinite, (*rights.values(), *lefts))):
            return cls(finite=False)
        powers = {key: _power(value) for key, value in rights.items()}
        of_lefts = [(id(block.right), _power(left)) for left, block in zip(lefts, blocks, strict=True)]
        most = max(power + powers[key] for key, power in of_lefts)
        extreme = {key for key, power in of_lefts if abs(power) > _MODERATE}
        to_one = {key: -power for key, power in powers.items() if abs(power) > _NEAR_ONE}
        return cls(LARGEST - most, to_one, frozenset(powers) - extreme)

    def of_right(self, right: Tensor, *, with_itself: bool) -> int:
        """The power that is the part of a right. with_itself: whether it is multiplied with itself, and so has to stay at about 1."""
        return self.exponent if not with_itself and id(right) in self.moderate else self.rights.get(id(right), 0)


def scaled(numbers: Tensor, power: int, dtype: torch.dtype) -> Tensor:
    """As numbers of ``dtype``, times 2^power; the same tensor where that changes nothing."""
    return numbers.to(dtype) * 2.0**power if power else numbers.to(dtype)


def _largest(matrices: Sequence[Tensor]) -> list[float]:
    """Of the magnitudes in each; NaN where one is."""
    device = matrices[0].device
    pieces = [(number, here) for number, matrix in enumerate(matrices) for here in shares(len(matrix), device)]

    def of_piece(piece: tuple[int, slice]) -> float:
        numbers = matrices[piece[0]][piece[1]]
        if not numbers.numel():
            return 0.0
        low, high = torch.aminmax(numbers)
        return float(torch.maximum(-low, high))

    found = [0.0] * len(matrices)
    for (number, _), largest in zip(pieces, side_by_side(of_piece, pieces, device, len(pieces)), strict=True):
        found[number] = largest if math.isnan(largest) or largest > found[number] else found[number]
    return found


def _power(magnitude: float) -> int:
    """The power of two above it."""
    return max(_LEAST, math.frexp(magnitude)[1]) if magnitude else _LEAST
