"""Describes weights in another layout as a strided view of a stored tensor.

A view has an offset, a shape and strides in elements, so that streams, samplers and kernels need no knowledge of layouts. Its elements are
taken in row-major order of its shape, which may have more axes than the tensor it is compared with.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Self

from analyzers.checkpoints.tensor import Scale, Tensor, normal_strides


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

    def part_of(self, tensor: Tensor, label: str) -> Tensor | None:
        """Return the viewed elements as a tensor named with ``label``; None if its scales or packed codes cannot be divided so."""
        strides = normal_strides(self.shape, self.strides)
        elements, start = prod(self.shape), self.offset * tensor.bits
        scale = tensor.scale
        if start % 8 or elements * tensor.bits % 8:
            return None
        if scale is not None and self != View.of(tensor):
            scale = None if strides is not None else _scale_of(tensor, scale, self)
            if scale is None:
                return None
        return replace(
            tensor,
            name=f"{tensor.name}[{label}]" if label else tensor.name,
            shape=self.shape,
            offset=tensor.offset + start // 8,
            nbytes=elements * tensor.bits // 8,
            strides=strides,
            scale=scale,
        )


def _scale_of(tensor: Tensor, scale: Scale, view: View) -> Scale | None:
    """Return the scales of a contiguous part: of whole matrices of a stack, or of whole rows of blocks of one matrix; else None."""
    stored = scale.tensor
    if stored.elements == 1:
        return scale
    if len(tensor.shape) < 2 or view.shape[-1:] != tensor.shape[-1:] or stored.strides is not None or view.offset % tensor.shape[-1]:
        return None
    (rows, columns), (block_rows, block_columns) = tensor.shape[-2:], scale.block
    per_matrix, across = -(-rows // block_rows), -(-columns // block_columns)
    matrix, first = divmod(view.offset // columns, rows)
    count = prod(view.shape[:-1])
    whole = first == 0 and count % rows == 0
    within = first % block_rows == 0 and (first + count == rows or (first + count < rows and count % block_rows == 0))
    if not whole and not within:
        return None
    used = count // rows * per_matrix if whole else -(-count // block_rows)
    start = (matrix * per_matrix + first // block_rows) * across
    part = replace(stored, shape=(used, across), offset=stored.offset + start * stored.itemsize, nbytes=used * across * stored.itemsize)
    return replace(scale, tensor=part)
