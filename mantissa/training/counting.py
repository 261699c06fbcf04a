"""Counts and sums of one look, tensor by tensor."""

from collections.abc import Sequence

import torch
from torch import Tensor

COLUMNS = ("size", "values", "changed", "swallowed", "changed_since_last", "swallowed_since_last", "update_squares", "weight_squares")
SIZE, VALUES, CHANGED, SWALLOWED, CHANGED_LAST, SWALLOWED_LAST, UPDATE, WEIGHT = range(len(COLUMNS))
_AT_ONCE = 1 << 20
"""Values compared at a time: bounds what a look needs beyond its copies."""


def counts(now: Sequence[Tensor], start: Sequence[Tensor], last: Sequence[Tensor]) -> Tensor:
    """(tensors, columns) float64, on the CPU: integers up to 2^53 and sums of squares. The sizes are left at 0.

    now, start, last: (n,) values of each tensor, of one dtype. Small tensors are compared together: a model has hundreds of them, and each
    operation costs microseconds.
    """
    table = torch.zeros(len(now), len(COLUMNS), dtype=torch.float64)
    batch: list[tuple[int, int, int]] = []  # tensor, first and last value
    size = 0
    for index, values in enumerate(now):
        for begin in range(0, values.numel(), _AT_ONCE):
            end = min(begin + _AT_ONCE, values.numel())
            if batch and (
                size + end - begin > _AT_ONCE or now[batch[-1][0]].device != values.device or now[batch[-1][0]].dtype != values.dtype
            ):
                _add(table, batch, now, start, last)
                batch, size = [], 0
            batch.append((index, begin, end))
            size += end - begin
    if batch:
        _add(table, batch, now, start, last)
    return table


def _add(table: Tensor, batch: Sequence[tuple[int, int, int]], *sides: Sequence[Tensor]) -> None:
    now, start, last = (torch.cat([side[index][begin:end] for index, begin, end in batch]) for side in sides)
    rows = torch.empty(len(COLUMNS), now.numel(), device=now.device)
    rows[SIZE], rows[VALUES] = 0, 1
    rows[CHANGED], rows[SWALLOWED] = _compared(now, start)
    rows[CHANGED_LAST], rows[SWALLOWED_LAST] = (rows[CHANGED], rows[SWALLOWED]) if sides[1] is sides[2] else _compared(now, last)
    rows[UPDATE] = (now.float() - last.float()).square()
    rows[WEIGHT] = now.float().square()
    sums, place = [], 0
    for _, begin, end in batch:
        sums.append(rows[:, place : place + end - begin].sum(1, dtype=torch.float64))
        place += end - begin
    table.index_add_(0, torch.tensor([index for index, _, _ in batch]), torch.stack(sums).cpu())


def _compared(now: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Where bf16 of a value has changed; where the stored value differs and bf16 of it does not. A NaN equals any NaN."""
    changed = _differs(now.bfloat16(), before.bfloat16())
    return changed, _differs(now, before) & ~changed


def _differs(a: Tensor, b: Tensor) -> Tensor:
    return (a != b) & ~(a.isnan() & b.isnan())
