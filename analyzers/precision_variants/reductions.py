"""Sums and maxima of many tensors, computed where the tensors are and read back together.

A readback stops the program until a GPU has done all its work: it is made once per device and call, however many tensors and rows there are.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

FloatArray = NDArray[np.float64]

# Elements at a time: on a CPU so few that they stay in a core's cache and torch starts no second thread.
_CPU_CHUNK = 1 << 15
_GPU_CHUNK = 1 << 24

_Block = tuple[int, Tensor, Tensor | None]
"""Where its first row is in the result, x (r, c), and ref (r, c)."""


def chunk_of(tensor: Tensor) -> int:
    """How many of the tensor's elements to handle at a time."""
    return _CPU_CHUNK if tensor.device.type == "cpu" else _GPU_CHUNK


def largest(tensors: Sequence[Tensor]) -> list[Tensor]:
    """max |x| of each tensor, a scalar on its device; NaN or infinite where an element is."""
    results: dict[int, Tensor] = {}
    for numbers in _groups((tensor.device, tensor.dtype) for tensor in tensors):
        group = [tensors[number] for number in numbers]
        if group[0].device.type == "cpu":
            values = [torch.maximum(high, -low) for low, high in map(torch.aminmax, group)]
        else:
            values = list(torch._foreach_norm(group, math.inf, dtype=torch.float64))  # one kernel for many tensors
        results |= zip(numbers, values, strict=True)
    return [results[number] for number in range(len(tensors))]


def read(tensors: Sequence[Tensor]) -> list[FloatArray]:
    """The tensors as float64 arrays of one dimension."""
    results: dict[int, FloatArray] = {}
    for numbers in _groups(tensor.device for tensor in tensors):
        group = [tensors[number].flatten() for number in numbers]
        values = torch.cat(group).cpu().double().numpy()
        results |= zip(numbers, np.split(values, np.cumsum([len(tensor) for tensor in group])[:-1]), strict=True)
    return [results[number] for number in range(len(tensors))]


def _groups(keys: Iterable[object]) -> list[list[int]]:
    """The positions of equal keys."""
    groups: dict[object, list[int]] = {}
    for number, key in enumerate(keys):
        groups.setdefault(key, []).append(number)
    return list(groups.values())


def totals(pairs: Sequence[tuple[Tensor, Tensor | None]], scale: float = 1.0) -> list[FloatArray]:
    """For each x (R, n) and ref (R, n), with d = x - scale ref, or x where ref is None: (R, 4), the sums of d, d^2 and x^2, and max |d|.

    d is exact on a CPU. On a GPU it has the wider of both types: float32, rounded by at most 6e-8 of itself where x is not within a factor
    of 2 of scale ref. Sums are float64 everywhere, since squares of gradients underflow in float32.
    """
    batches = list(_batches(pairs))
    tables = read([_table([x for _, x, _ in batch], [ref for _, _, ref in batch], scale) for batch in batches])
    rows = [row + offset for batch in batches for row, x, _ in batch for offset in range(len(x))]
    values = np.concatenate([table.reshape(4, -1) for table in tables], 1) if tables else np.zeros((4, 0))
    values[1:3] **= 2
    result = np.zeros((sum(len(x) for x, _ in pairs), 4))
    np.add.at(result[:, :3], rows, values[:3].T)
    with np.errstate(invalid="ignore"):  # NaN
        np.maximum.at(result[:, 3], rows, values[3])
    return np.split(result, np.cumsum([len(x) for x, _ in pairs])[:-1])


def _batches(pairs: Sequence[tuple[Tensor, Tensor | None]]) -> Iterator[list[_Block]]:
    """Blocks of a chunk at most; neighbours of one dtype together while they are not more than a chunk."""
    batch: list[_Block] = []
    size = 0
    for block in _blocks(pairs):
        x = block[1]
        if batch and (size + x.numel() > chunk_of(x) or (x.dtype, x.device) != (batch[0][1].dtype, batch[0][1].device)):
            yield batch
            batch, size = [], 0
        batch.append(block)
        size += x.numel()
    if batch:
        yield batch


def _blocks(pairs: Sequence[tuple[Tensor, Tensor | None]]) -> Iterator[_Block]:
    start = 0
    for x, ref in pairs:
        columns = chunk_of(x)
        step = max(1, columns // max(1, x.shape[1]))
        for row in range(0, len(x), step):
            for first in range(0, x.shape[1], columns):
                index = slice(row, row + step), slice(first, first + columns)
                yield start + row, x[index], None if ref is None else ref[index]
        start += len(x)


def _table(xs: list[Tensor], refs: list[Tensor | None], scale: float) -> Tensor:
    """(4, rows of all xs): sum of d, norms of d and x, max |d|."""
    if xs[0].device.type == "cpu":
        xs = [x.double() for x in xs]
        refs = [None if ref is None else ref.double() for ref in refs]  # subtracting mixed types takes longer there than converting
    ds = [x if ref is None else torch.sub(x, ref.to(x.device), alpha=scale) for x, ref in zip(xs, refs, strict=True)]
    parts, wholes = ([row for tensor in tensors for row in tensor] for tensors in (ds, xs))
    norms = torch._foreach_norm(parts, 2, dtype=torch.float64)
    of_x = norms if refs[0] is None else torch._foreach_norm(wholes, 2, dtype=torch.float64)
    return torch.cat([*(d.sum(-1, dtype=torch.float64) for d in ds), torch.stack([*norms, *of_x, *largest(parts)])])
