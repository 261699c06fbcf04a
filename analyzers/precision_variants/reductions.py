"""Sums and maxima of many tensors, computed where the tensors are and read back together; on a GPU tensors of several layers wait for it.

A readback waits until a GPU has done all its work: there is one per device and call, however many tensors and rows there are.
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import accumulate, groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

FloatArray = NDArray[np.float64]

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
def largest(tensors: Sequence[Tensor]) -> list[float]:
    """max |x| of each tensor, which has elements; NaN or infinite where one is."""
    numbers: defaultdict[int, list[int]] = defaultdict(list)
    values: defaultdict[int, list[Tensor]] = defaultdict(list)
    for kind in _groups((tensor.get_device(), tensor.dtype) for tensor in tensors):
        device = tensors[kind[0]].get_device()
        numbers[device] += kind
        values[device].append(torch.stack(_largest([tensors[number] for number in kind])).double())
    results = {number: each for device in values for number, each in zip(numbers[device], torch.cat(values[device]).tolist(), strict=True)}
    return [results[number] for number in range(len(tensors))]


def _largest(tensors: list[Tensor]) -> list[Tensor]:
    """max |x| of tensors of one dtype and device: on a GPU in float64 and by one kernel for many; on a CPU that takes 20 times as long."""
    if on_gpu(tensors[0]):
        return list(torch._foreach_norm(tensors, math.inf, dtype=torch.float64))
    return [torch.maximum(high, -low) for low, high in map(torch.aminmax, tensors)]


def read(tensors: Sequence[Tensor]) -> list[FloatArray]:
    """The tensors, of one dimension or none, as float64 arrays of one."""
    results: dict[int, FloatArray] = {}
    for numbers in _groups(tensor.get_device() for tensor in tensors):
        group = [tensors[number] for number in numbers]
        values = torch.hstack(group).cpu().double().numpy()
        ends = list(accumulate(tensor.numel() for tensor in group))
        results |= {number: values[end - tensor.numel() : end] for number, tensor, end in zip(numbers, group, ends, strict=True)}
    return [results[number] for number in range(len(tensors))]


def _groups(keys: Iterable[Hashable]) -> list[list[int]]:
    """The positions of equal keys. A device's number is hashed in a fraction of the time that the device takes."""
    groups: defaultdict[object, list[int]] = defaultdict(list)
    for number, key in enumerate(keys):
        groups[key].append(number)
    return list(groups.values())


@torch.no_grad()
def totals(pairs: Sequence[tuple[Tensor, Tensor | None]], scale: float = 1.0, ref_ref: FloatArray | None = None) -> list[FloatArray]:
    """For each x (R, n) and ref (R, n), with d = x - scale ref, or x where ref is None: (R, 4), the sums of d, d^2 and ref d, and max |d|.

    Sums are float64, since squares of gradients underflow in float32. d is float64 on a CPU; on a GPU, where that takes twice the time
    and memory, float32 unless x is wider. ref_ref: the sums of ref^2 of all rows.
    """
    batches = list(_batches(pairs))
    if not batches:
        return [np.zeros((x.shape[0], 4)) for x, _ in pairs]
    tables = read([_table([x for _, x, _ in batch], [ref for _, _, ref in batch], scale) for batch in batches])
    rows = [row + offset for batch in batches for row, x, _ in batch for offset in range(x.shape[0])]
    found = np.concatenate([table.reshape(4, -1) for table in tables], 1)
    result = np.zeros((sum(x.shape[0] for x, _ in pairs), 4))
    with np.errstate(invalid="ignore", over="ignore"):  # NaN, and the difference of infinities
        np.add.at(result[:, :3], rows, found[:3].T)
        np.maximum.at(result[:, 3], rows, found[3])
        if ref_ref is not None:  # a GPU gives |x|^2 = |d|^2 + 2 scale ref d + scale^2 |ref|^2: a dot product is a launch for each row
            d_d, x_x = result[:, 1], result[:, 2]
            most = np.sqrt(ref_ref * d_d)
            products = ((x_x - d_d - scale**2 * ref_ref) / (2 * scale)).clip(-most, most)
            result[:, 2] = np.where(np.repeat([on_gpu(x) for x, _ in pairs], [x.shape[0] for x, _ in pairs]), products, x_x)
    return np.split(result, np.cumsum([x.shape[0] for x, _ in pairs])[:-1])


def chunks(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """The elements of tensors of one dtype, (n,) at a time: large tensors in parts, small ones joined."""
    waiting: list[Tensor] = []
    size = 0
    for tensor in tensors:
        most, count = chunk_of(tensor), tensor.numel()
        if waiting and (waiting[0].device != tensor.device or size + count > most):
            yield torch.cat(waiting)
            waiting, size = [], 0
        if count > most:
            yield from torch.split(tensor.reshape(-1), most)
        else:
            waiting.append(tensor.reshape(-1))
            size += count
    if waiting:
        yield torch.cat(waiting)


def _batches(pairs: Sequence[tuple[Tensor, Tensor | None]]) -> Iterator[list[_Block]]:
    """Blocks of a chunk at most; those of one dtype together while they are not more than a chunk."""
    batch: list[_Block] = []
    of_batch: tuple[torch.dtype, int] | None = None
    size = 0
    for block in sorted(_blocks(pairs), key=lambda block: (block[1].itemsize, block[1].shape)):
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


def _table(xs: list[Tensor], refs: list[Tensor | None], scale: float) -> Tensor:
    """(4 N,) for N rows in all xs: sums of d, d^2 and ref d, on a GPU x^2 instead, and max |d|."""
    gpu = on_gpu(xs[0])
    dtype = torch.promote_types(xs[0].dtype, torch.float32) if gpu else torch.float64
    others = [ref.to(x.device, dtype) for x, ref in zip(xs, refs, strict=True) if ref is not None]
    if gpu or others:
        flat = torch.empty(sum(x.numel() for x in xs), dtype=dtype, device=xs[0].device)
        ds = [part.view(x.shape) for part, x in zip(torch.split(flat, [x.numel() for x in xs]), xs, strict=True)]
        torch._foreach_copy_(ds, xs)
    else:
        ds = [x.double() for x in xs]
    if others:
        torch._foreach_sub_(ds, others, alpha=scale)  # of mixed types it takes longer than converting
    rows = _rows(ds)
    squares: Sequence[Tensor]
    if not gpu:  # row by row, since torch would start threads
        squares = [torch.dot(row, row) for row in rows]
        dots = [torch.dot(d, ref) for d, ref in zip(rows, _rows(others), strict=True)] if others else squares
        return torch.stack([*(row.sum() for row in rows), *squares, *dots, *_largest(rows)])
    shapes = [(shape, len(list(same))) for shape, same in groupby(d.shape for d in ds)]  # a kernel for all tensors of one
    parts = zip(torch.split(flat, [number * shape.numel() for shape, number in shapes]), shapes, strict=True)
    sums = [part.view(-1, shape[1]).sum(1, dtype=torch.float64) for part, (shape, _) in parts]
    squares = torch._foreach_norm(rows, 2, dtype=torch.float64)
    products = torch._foreach_norm(_rows(xs), 2, dtype=torch.float64) if others else squares
    norms = torch.stack([*squares, *products, *_largest(rows)])
    norms[: 2 * len(rows)].square_()
    return torch.cat([*sums, norms])


def _rows(tensors: list[Tensor]) -> list[Tensor]:
    return [row for tensor in tensors for row in ((tensor.view(-1),) if tensor.shape[0] == 1 else tensor.unbind())]
