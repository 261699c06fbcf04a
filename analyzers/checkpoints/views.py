"""Describes weights in another layout as a strided view of a stored tensor.

A view has an offset, a shape and strides in elements, so that streams, samplers and kernels need no knowledge of layouts. Its elements are
taken in row-major order of its shape, which may have more axes than the tensor it is compared with.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Self

from analyzers.checkpoints.tensor import Tensor, normal_strides


@dataclass(frozen=True, slots=True)
class View:
    """A strided view of a tensor's elements: the first is element ``offset``, ``strides`` give the steps along its axes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @classmethod
    def of(cls, tensor: Tensor) -> Self:
        """View all of a tensor, as stored."""
        row_major = tuple(prod(tensor.shape[axis + 1 :]) for axis in range(len(tensor.shape)))
        return cls(tensor.shape, row_major if tensor.strides is None else tensor.strides)

    def split(self, axis: int, *lengths: int) -> "View":
        """Split an axis into several, the last the fastest. The product of ``lengths`` is the axis's length."""
        inner = [prod(lengths[i + 1 :]) * self.strides[axis] for i in range(len(lengths))]
        shape, strides = (
            (*each[:axis], *new, *each[axis + 1 :]) for each, new in ((self.shape, lengths), (self.strides, inner))
        )  # fmt: skip
        return View(shape, strides, self.offset)

    def cut(self, axis: int, start: int, stop: int) -> "View":
        """Restrict an axis to indices ``start`` to ``stop`` - 1."""
        return View((*self.shape[:axis], stop - start, *self.shape[axis + 1 :]), self.strides, self.offset + start * self.strides[axis])

    def pick(self, axis: int, index: int) -> "View":
        """Select one index of an axis, which disappears."""
        shape, strides = ((*each[:axis], *each[axis + 1 :]) for each in (self.shape, self.strides))
        return View(shape, strides, self.offset + index * self.strides[axis])

    def permute(self, order: Sequence[int]) -> "View":
        """Put the axes into another order."""
        return View(tuple(self.shape[i] for i in order), tuple(self.strides[i] for i in order), self.offset)

    def part_of(self, tensor: Tensor, label: str) -> Tensor:
        """Return the viewed elements as a tensor named with ``label``."""
        return replace(
            tensor,
            name=f"{tensor.name}[{label}]" if label else tensor.name,
            shape=self.shape,
            offset=tensor.offset + self.offset * tensor.itemsize,
            nbytes=prod(self.shape) * tensor.itemsize,
            strides=normal_strides(self.shape, self.strides),
        )
