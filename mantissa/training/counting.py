"""Counts and sums of one look, tensor by tensor."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# Of the stored values: `finer` counts those in a format that resolves more than bf16.
_CHANGES = ("values", "finer", "changed", "swallowed", "changed_since_last", "swallowed_since_last", "update_squares", "weight_squares")
# Of the values that a shadow follows: `followed` counts those of a finite intended update.
_LOSSES = ("followed", "intended", "lost", "missing_squares", "intended_squares", "drift_squares", "moved_squares")
COLUMNS = ("size", *_CHANGES, *_LOSSES)
SIZE, VALUES, FINER_VALUES, CHANGED, SWALLOWED, CHANGED_LAST, SWALLOWED_LAST, UPDATE, WEIGHT = range(1 + len(_CHANGES))
FOLLOWED, INTENDED, LOST, MISSING, INTENDED_SQUARES, DRIFT, MOVED = range(1 + len(_CHANGES), len(COLUMNS))
FINER = (torch.float16, torch.float32, torch.float64)
"""Formats that hold values between those of bf16."""
_AT_ONCE = 1 << 20
"""Values compared at a time: bounds what a look needs beyond its copies."""


def changes(now: Sequence[Tensor], start: Sequence[Tensor], last: Sequence[Tensor]) -> Tensor:
    """(tensors, columns VALUES to WEIGHT) float64, on the CPU: integers up to 2^53 and sums of squares.

    now, start, last: (n,) values of each tensor, of one dtype.
    """
    return _table(_changes, len(_CHANGES), now, start, last)


def losses(
    now: Sequence[Tensor], last: Sequence[Tensor], shadow: Sequence[Tensor], before: Sequence[Tensor], start: Sequence[Tensor]
) -> Tensor:
    """(tensors, columns FOLLOWED to MOVED) float64, on the CPU.

    now, last, start: (n,) stored values of each tensor, at the last look, and when its shadow began; shadow, before: the shadow's now and
    at the last look.
    """
    return _table(_losses, len(_LOSSES), now, last, shadow, before, start)


def _table(compare: Callable[..., Tensor], columns: int, *sides: Sequence[Tensor]) -> Tensor:
    """Sums of the rows that ``compare`` gives. Small tensors are compared together, since operations take microseconds."""
    now = sides[0]
    table = torch.zeros(len(now), columns, dtype=torch.float64)
    batch: list[tuple[int, int, int]] = []  # tensor, first and last value
    size = 0
    for index, values in enumerate(now):
        for begin in range(0, values.numel(), _AT_ONCE):
            end = min(begin + _AT_ONCE, values.numel())
            if batch and (
                size + end - begin > _AT_ONCE or now[batch[-1][0]].device != values.device or now[batch[-1][0]].dtype != values.dtype
            ):
                _add(table, compare, batch, sides)
                batch, size = [], 0
            batch.append((index, begin, end))
            size += end - begin
    if batch:
        _add(table, compare, batch, sides)
    return table


def _add(table: Tensor, compare: Callable[..., Tensor], batch: Sequence[tuple[int, int, int]], sides: Sequence[Sequence[Tensor]]) -> None:
    rows = compare(*(torch.cat([side[index][begin:end] for index, begin, end in batch]) for side in sides))
    sums, place = [], 0
    for _, begin, end in batch:
        sums.append(rows[:, place : place + end - begin].sum(1, dtype=torch.float64))
        place += end - begin
    table.index_add_(0, torch.tensor([index for index, _, _ in batch]), torch.stack(sums).cpu())


def _changes(now: Tensor, start: Tensor, last: Tensor) -> Tensor:
    rows = torch.ones(len(_CHANGES), now.numel(), device=now.device)
    rows[FINER_VALUES - 1] = now.dtype in FINER
    rows[CHANGED - 1], rows[SWALLOWED - 1] = _compared(now, start)
    rows[CHANGED_LAST - 1], rows[SWALLOWED_LAST - 1] = _compared(now, last)
    rows[UPDATE - 1] = (now.float() - last.float()).square()
    rows[WEIGHT - 1] = now.float().square()
    return rows


def _losses(now: Tensor, last: Tensor, shadow: Tensor, before: Tensor, start: Tensor) -> Tensor:
    intended = shadow - before
    nonzero = intended.abs() > 0  # a NaN is no update
    missing = intended - (now.to(shadow.dtype) - last)
    squares = (missing, intended, now - shadow, shadow - start)
    counts = (intended.isfinite(), nonzero, nonzero & ~_differs(now, last))
    return torch.stack([each.to(shadow.dtype) for each in counts] + [each.square() for each in squares])


def _compared(now: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Where bf16 of a value has changed; where the stored value differs and bf16 of it does not. A NaN equals any NaN."""
    changed = _differs(now.bfloat16(), before.bfloat16())
    return changed, _differs(now, before) & ~changed


def _differs(a: Tensor, b: Tensor) -> Tensor:
    return (a != b) & ~(a.isnan() & b.isnan())
