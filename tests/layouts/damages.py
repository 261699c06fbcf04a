"""Ways to damage one tensor, and the relations to its source that fit each."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from analyzers.parents.report import Relation
from tests.layouts.architectures import values


@dataclass(frozen=True, slots=True)
class Damage:
    """One way. change: of a tensor, and of another one of its shape. relations: those that fit the tensor; parts: those that may fit parts
    of it, or the tensor among others in one.
    """

    name: str
    change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    relations: tuple[Relation, ...]
    parts: tuple[Relation, ...] = ("differs",)
    swaps: bool = False


def _half(tensor: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
    """The first half of the rows of one and the others of ``rest``."""
    rows = tensor.shape[0] // 2
    return torch.cat([tensor[:rows], rest[rows:]])


def _noise(tensor: torch.Tensor) -> torch.Tensor:
    return values(f"noise for {tuple(tensor.shape)}", tuple(tensor.shape), tensor.dtype, seed=1)


def _not_a_number(tensor: torch.Tensor) -> torch.Tensor:
    result = tensor.clone()
    result[tensor.shape[0] // 2] = torch.nan
    return result


def _scaled(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """In fp32, and back."""
    return (tensor.float() * factor).to(tensor.dtype)


def _shuffled(tensor: torch.Tensor) -> torch.Tensor:
    """The rows in another order, none where it was."""
    return tensor.roll(tensor.shape[0] // 2 + 1, 0)


# Eight kinds; of some kinds two.
DAMAGES: tuple[tuple[Damage, ...], ...] = (
    (Damage("zeros", lambda tensor, _: torch.zeros_like(tensor), ("zeroed",)),),
    (Damage("one value", lambda tensor, _: torch.full_like(tensor, 0.0199), ("constant",)),),
    (
        Damage(
            "zeros after half of the rows", lambda tensor, _: _half(tensor, torch.zeros_like(tensor)), ("truncated",), ("zeroed", "differs")
        ),
        Damage("noise after half of the rows", lambda tensor, _: _half(tensor, _noise(tensor)), ("truncated",)),
    ),
    (Damage("another tensor's values", lambda _, other: other.clone(), ("swapped",), swaps=True),),
    (
        Damage("half of each value", lambda tensor, _: _scaled(tensor, 0.5), ("scaled",)),
        Damage("1.37 times each value", lambda tensor, _: _scaled(tensor, 1.37), ("scaled",)),
    ),
    (Damage("a row of NaN", lambda tensor, _: _not_a_number(tensor), ("non-finite",)),),
    (Damage("noise", lambda tensor, _: _noise(tensor), ("differs",)),),
    (
        Damage("signs flipped", lambda tensor, _: -tensor, ("scaled", "differs")),
        Damage("rows in another order", lambda tensor, _: _shuffled(tensor), ("differs",), ("swapped",)),
    ),
)
