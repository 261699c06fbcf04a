"""Defines damages of one tensor, and the relations to its source that describe each."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from analyzers.comparison.parents.report import Relation
from tests.layouts.architectures import values


@dataclass(frozen=True, slots=True)
class Damage:
    """A damage. change: makes the damaged tensor from the tensor and another one of its shape. relations: those that describe the tensor;
    parts: those that may describe parts of it, or the tensor as a part of another.
    """

    name: str
    change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    relations: tuple[Relation, ...]
    parts: tuple[Relation, ...] = ("changed", "other", "reordered")
    swaps: bool = False


def _half(tensor: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
    """Combine the first half of the rows with the second half of those of ``rest``."""
    rows = tensor.shape[0] // 2
    return torch.cat([tensor[:rows], rest[rows:]])


def _noise(tensor: torch.Tensor) -> torch.Tensor:
    return values(f"noise for {tuple(tensor.shape)}", tuple(tensor.shape), tensor.dtype, seed=1)


def _not_a_number(tensor: torch.Tensor) -> torch.Tensor:
    result = tensor.clone()
    result[tensor.shape[0] // 2] = torch.nan
    return result


def _scaled(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """Scale in fp32, and convert back."""
    return (tensor.float() * factor).to(tensor.dtype)


def _shuffled(tensor: torch.Tensor) -> torch.Tensor:
    """Permute the rows so that none stays in place."""
    return tensor.roll(tensor.shape[0] // 2 + 1, 0)


DAMAGES = (
    Damage("zeros", lambda tensor, _: torch.zeros_like(tensor), ("zero",)),
    Damage("one value", lambda tensor, _: torch.full_like(tensor, 0.0199), ("constant",)),
    Damage(
        "zeros after half of the rows",
        lambda tensor, _: _half(tensor, torch.zeros_like(tensor)),
        ("truncated",),
        ("zero", "changed", "other"),
    ),
    Damage("noise after half of the rows", lambda tensor, _: _half(tensor, _noise(tensor)), ("truncated",)),
    Damage("another tensor's values", lambda _, other: other.clone(), ("other",), swaps=True),
    Damage("half of each value", lambda tensor, _: _scaled(tensor, 0.5), ("affine",)),
    Damage("1.37 times each value", lambda tensor, _: _scaled(tensor, 1.37), ("affine",)),
    Damage("a row of NaN", lambda tensor, _: _not_a_number(tensor), ("non-finite",)),
    Damage("noise", lambda tensor, _: _noise(tensor), ("other",)),
    Damage("signs flipped", lambda tensor, _: -tensor, ("affine",), ("affine", "other")),
    Damage("rows in another order", lambda tensor, _: _shuffled(tensor), ("reordered",), ("other", "changed", "reordered")),
)
