"""Counts and sums of one look, tensor by tensor."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from mantissa.training.watched_values import BLOCK

# Of the stored values: `finer` counts those in a format that resolves more than bf16.
_CHANGES = ("values", "finer", "changed", "swallowed", "changed_since_last", "swallowed_since_last", "update_squares", "weight_squares")
# Of the values that a shadow follows: `followed` counts those of a finite intended update.
_LOSSES = ("followed", "intended", "lost", "missing_squares", "intended_squares", "drift_squares", "moved_squares")
COLUMNS = ("size", *_CHANGES, *_LOSSES)
SIZE, VALUES, FINER_VALUES, CHANGED, SWALLOWED, CHANGED_LAST, SWALLOWED_LAST, UPDATE, WEIGHT = range(1 + len(_CHANGES))
FOLLOWED, INTENDED, LOST, MISSING, INTENDED_SQUARES, DRIFT, MOVED = range(1 + len(_CHANGES), len(COLUMNS))
FINER = (torch.float16, torch.float32, torch.float64)
"""Formats that hold values between those of bf16."""
_AT_ONCE = {"cpu": 1 << 20, "cuda": 16 << 20}
"""Values compared at a time: bounds what a look needs beyond its copies."""


def changes(now: Sequence[Tensor], start: Sequence[Tensor], last: Sequence[Tensor]) -> Tensor:
    """(tensors, columns CHANGED to WEIGHT) float64, on the CPU. Each (n,) watched values: now, at the start and at the last look."""
    return _table(_changes, FOLLOWED - CHANGED, now, start, last)


def losses(
    now: Sequence[Tensor], last: Sequence[Tensor], shadow: Sequence[Tensor], before: Sequence[Tensor], start: Sequence[Tensor]
) -> Tensor:
    """(tensors, columns FOLLOWED to MOVED) float64, on the CPU.

    now, last, start: (n,) stored values of each tensor, at the last look, and when its shadow began; shadow, before: the shadow's now and
    at the last look.
    """
    table = _table(_losses, len(_LOSSES), now, last, shadow, before, start)
    table[:, 0] = torch.tensor([values.numel() for values in now], dtype=torch.float64) - table[:, 0]
    return table


def _table(compare: Callable[..., Iterator[Tensor | None]], columns: int, *sides: Sequence[Tensor]) -> Tensor:
    """Sums of the columns that ``compare`` gives of flat vectors with the values of many tensors, and the index of these segments.

    They are read back from a device once, at the end.
    """
    now = sides[0]
    tables: dict[torch.device, Tensor] = {}
    for batch in _batches(now):
        device = now[batch[0][0]].device
        table = tables.setdefault(device, torch.zeros(columns, len(now), dtype=torch.float64, device=device))
        index = torch.tensor([index for index, _, _ in batch])
        if len(batch) > 1:
            index = index.repeat_interleave(torch.tensor([-(-(end - begin) // BLOCK) for _, begin, end in batch]))
        sums: list[Tensor] = []
        for values in compare(*(_joined(side, batch) for side in sides)):
            kind = torch.float32 if values is not None and values.dtype == torch.bool else torch.float64  # exact for so few
            sums.append(torch.zeros_like(sums[0]) if values is None else values.view(len(index), -1).sum(1, dtype=kind))
        table.index_add_(1, index.to(device, non_blocking=True), torch.stack([each.double() for each in sums]))
    return sum((table.cpu() for table in tables.values()), torch.zeros(columns, len(now), dtype=torch.float64)).T


def _batches(tensors: Sequence[Tensor]) -> Iterator[list[tuple[int, int, int]]]:
    """Parts (tensor, first and last value) to compare together, of one device and dtype: operations on small tensors take microseconds."""
    batch: list[tuple[int, int, int]] = []
    size, kind = 0, None
    for index, values in enumerate(tensors):
        most = _AT_ONCE.get(values.device.type, _AT_ONCE["cpu"])
        count, own = values.numel(), (values.device, values.dtype)
        for begin in range(0, count, most):
            end = min(begin + most, count)
            if batch and (size + end - begin > most or kind != own):
                yield batch
                batch, size = [], 0
            batch.append((index, begin, end))
            size, kind = size + end - begin, own
    if batch:
        yield batch


def _joined(tensors: Sequence[Tensor], batch: Sequence[tuple[int, int, int]]) -> Tensor:
    """The parts one after another; of several, each padded with zeros to whole blocks."""
    parts = []
    zeros = tensors[batch[0][0]].new_zeros(BLOCK)
    for index, begin, end in batch:
        values = tensors[index]
        parts.append(values if end - begin == values.numel() else values[begin:end])
        if len(batch) > 1 and (end - begin) % BLOCK:
            parts.append(zeros[(end - begin) % BLOCK :])
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _changes(now: Tensor, start: Tensor, last: Tensor) -> Iterator[Tensor | None]:
    """Columns CHANGED to WEIGHT of values of one shape, None for zeros. Since the start, then the last look: where bf16 of a value has
    changed, and where the stored value differs and bf16 of it does not. A NaN equals any NaN.
    """
    for before in (start, last):
        changed = _differs(now.bfloat16(), before.bfloat16())
        yield changed
        yield _differs(now, before) & ~changed if now.dtype in FINER else None
    yield (now.float() - last.float()).square_()
    yield now.float().square()


def _losses(now: Tensor, last: Tensor, shadow: Tensor, before: Tensor, start: Tensor) -> Iterator[Tensor]:
    """The first column counts what is not finite, which zeros that pad are."""
    intended = shadow - before
    nonzero = intended.abs() > 0  # a NaN is no update
    yield ~intended.isfinite()
    yield nonzero
    yield nonzero & ~_differs(now, last)
    yield (intended - (now.to(shadow.dtype) - last)).square_()
    yield intended.square_()
    yield (now - shadow).square_()
    yield (shadow - start).square_()


def _differs(a: Tensor, b: Tensor) -> Tensor:
    return (a != b) & ~(a.isnan() & b.isnan())
