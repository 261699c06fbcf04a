"""Sums and maxima of many tensors, computed where the tensors are and read back together; on a GPU tensors of several layers wait for it.

A readback waits until a GPU has done all its work: there is one per device and call, however many tensors and rows there are.
"""

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import cast

import numpy as np
import torch
from torch import Tensor

from analyzers.precision_variants.packed_sums import FloatArray, held, packed_sums

# Elements at a time: on a CPU so few that they stay in a core's cache and torch starts no second thread.
_CPU_CHUNK = 1 << 15
_GPU_CHUNK = 1 << 25
WAITING_BYTES = 256 << 20

_Block = tuple[int, Tensor, Tensor | None]
"""Where its first row is in the result, x (r, c), and ref (r, c)."""


def on_gpu(tensor: Tensor) -> bool:
    """Whether each operation costs a launch, and memory bandwidth rather than arithmetic is scarce."""
    return tensor.device.type != "cpu"


def chunk_of(tensor: Tensor) -> int:
    """How many of the tensor's elements to handle at a time."""
    return _GPU_CHUNK if on_gpu(tensor) else _CPU_CHUNK


def waiting_bytes(tensors: Iterable[Tensor]) -> float:
    """What tensors hold while they wait to be reduced with later ones, up to `WAITING_BYTES`; infinite on a CPU, where none has to."""
    return sum(tensor.nbytes if on_gpu(tensor) else math.inf for tensor in tensors)


@torch.no_grad()
def largest(tensors: Sequence[Tensor]) -> list[Tensor]:
    """max |x| of each tensor, a scalar on its device; NaN or infinite where an element is."""
    results: dict[int, Tensor] = {}
    for numbers in _groups((tensor.get_device(), tensor.dtype) for tensor in tensors):
        group = [tensors[number] for number in numbers]
        by_kernel = on_gpu(group[0])  # one for many tensors; on a CPU that takes 20 times as long
        extremes = () if by_kernel else map(torch.aminmax, group)
        values = torch._foreach_norm(group, math.inf) if by_kernel else [torch.maximum(high, -low) for low, high in extremes]
        results |= zip(numbers, values, strict=True)
    return [results[number] for number in range(len(tensors))]


def read(tensors: Sequence[Tensor]) -> list[FloatArray]:
    """The tensors, of one dimension or none, as float64 arrays of one."""
    results: dict[int, FloatArray] = {}
    for numbers in _groups(tensor.get_device() for tensor in tensors):
        group = [tensors[number] for number in numbers]
        values = torch.hstack(group).cpu().double().numpy()
        ends = list(accumulate(tensor.numel() for tensor in group))
        results |= {number: values[end - tensor.numel() : end] for number, tensor, end in zip(numbers, group, ends, strict=True)}
    return [results[number] for number in range(len(tensors))]


def read_scalars(tensors: Sequence[Tensor]) -> list[float]:
    """The values of scalars."""
    results: dict[int, float] = {}
    for numbers in _groups(tensor.get_device() for tensor in tensors):
        results |= zip(numbers, torch.stack([tensors[number] for number in numbers]).double().tolist(), strict=True)
    return [results[number] for number in range(len(tensors))]


def _groups(keys: Iterable[Hashable]) -> list[list[int]]:
    """The positions of equal keys. A device's number is hashed in a fraction of the time that the device takes."""
    groups: dict[object, list[int]] = {}
    for number, key in enumerate(keys):
        groups.setdefault(key, []).append(number)
    return list(groups.values())


@torch.no_grad()
def totals(pairs: Sequence[tuple[Tensor, Tensor | None]], scale: float = 1.0, packed: bool = False) -> list[FloatArray]:
    """For each x (R, n) and ref (R, n), with d = x - scale ref, or x where ref is None: (R, 4), the sums of d, d^2 and ref d, and max |d|.

    In float64, since squares of gradients underflow in float32, and exact in d. packed: on a GPU as `packed_sums`.
    """
    batches = list(_batches(pairs))
    if not batches:
        return [np.zeros((x.shape[0], 4)) for x, _ in pairs]
    tables = read([_table([x for _, x, _ in batch], [ref for _, _, ref in batch], scale, packed) for batch in batches])
    rows = [row + offset for batch in batches for row, x, _ in batch for offset in range(x.shape[0])]
    found = np.concatenate([table.reshape(4, -1) for table in tables], 1)
    result = np.zeros((sum(len(x) for x, _ in pairs), 4))
    with np.errstate(invalid="ignore"):  # NaN, and the difference of infinities
        np.add.at(result[:, :3], rows, found[:3].T)
        np.maximum.at(result[:, 3], rows, found[3])
    return np.split(result, np.cumsum([len(x) for x, _ in pairs])[:-1])


def differences(pairs: Sequence[tuple[Tensor, Tensor]], ref_ref: FloatArray, scale: float) -> list[FloatArray]:
    """`totals`; on a GPU by `packed_sums` where float32 suffices. ref_ref: (N,) the sums of ref^2 of all rows."""
    tables = totals(pairs, scale, packed=True)
    if on_gpu(pairs[0][0]):
        number = np.repeat(np.arange(len(pairs)), [len(x) for x, _ in pairs])
        for again in np.unique(number[~held(np.concatenate(tables), ref_ref)]):
            (tables[again],) = totals([pairs[again]], scale)
    return tables


def _batches(pairs: Sequence[tuple[Tensor, Tensor | None]]) -> Iterator[list[_Block]]:
    """Blocks of a chunk at most; those of one dtype together while they are not more than a chunk."""
    batch: list[_Block] = []
    of_batch: tuple[torch.dtype, int] | None = None
    size = 0
    for block in sorted(_blocks(pairs), key=lambda block: block[1].itemsize):
        x = block[1]
        count, kind = x.numel(), (x.dtype, x.get_device())
        if batch and (size + count > chunk_of(x) or kind != of_batch):
            yield batch
            batch, size = [], 0
        batch.append(block)
        size, of_batch = size + count, kind
    if batch:
        yield batch


def _blocks(pairs: Sequence[tuple[Tensor, Tensor | None]]) -> Iterator[_Block]:
    start = 0
    for x, ref in pairs:
        columns = chunk_of(x)
        if 0 < x.numel() <= columns:
            yield start, x, ref
            start += x.shape[0]
            continue
        step = max(1, columns // max(1, x.shape[1]))
        for row in range(0, x.shape[0], step):
            for first in range(0, x.shape[1], columns):
                index = slice(row, row + step), slice(first, first + columns)
                yield start + row, x[index], None if ref is None else ref[index]
        start += x.shape[0]


def _table(xs: list[Tensor], refs: list[Tensor | None], scale: float, packed: bool) -> Tensor:
    """(4 N,) for N rows in all xs: sums of d, d^2 and ref d, max |d|."""
    if refs[0] is None:
        if not on_gpu(xs[0]):
            xs = [x.double() for x in xs]
        rows = [row for x in xs for row in x.unbind()]
        squares = _squares(rows)
        return torch.cat([_sums(xs, rows), squares, squares, torch.stack(largest(rows)).double()])
    others = [cast(Tensor, ref).to(x.device) for x, ref in zip(xs, refs, strict=True)]
    if packed and on_gpu(xs[0]):
        return packed_sums(xs, others, scale)
    xs, others = [x.to(torch.float64, copy=True) for x in xs], [ref.double() for ref in others]
    torch._foreach_sub_(xs, others, alpha=scale)  # of mixed types it takes longer than converting
    rows = [row for d in xs for row in d.unbind()]
    products = torch.stack([torch.dot(d, ref) for d, ref in zip(rows, (row for ref in others for row in ref.unbind()), strict=True)])
    return torch.cat([_sums(xs, rows), _squares(rows), products, torch.stack(largest(rows))])


def _sums(tensors: list[Tensor], rows: list[Tensor]) -> Tensor:
    """Of each row: on a GPU by one kernel for all rows of a tensor; on a CPU, where torch would start threads, row by row."""
    if on_gpu(rows[0]):
        return torch.cat([tensor.sum(1, dtype=torch.float64) for tensor in tensors])
    return torch.stack([row.sum() for row in rows])


def _squares(rows: list[Tensor]) -> Tensor:
    return torch.stack(torch._foreach_norm(rows, 2, dtype=torch.float64)).square()
