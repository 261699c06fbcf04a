"""Copies of watched values, packed so that a look takes few operations: on a GPU each costs more than comparing the values of a tensor."""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from mantissa.training.update_counts import CHANGED, FOLLOWED, at_once, block_sums, changes
from mantissa.training.watched_values import BLOCK

Piece = tuple[int, int, slice, Tensor | None]
"""A tensor's number, how many blocks of it, its values, and the chosen blocks instead."""


class WatchedCopies:
    """Watched values of tensors of one dtype and device, at the start and at the last look: (blocks, BLOCK), each tensor padded with zeros.

    rows: the watched blocks of each tensor, None for all values; start, last: (n,) each tensor's watched values then, which become views of
    the copies.
    """

    def __init__(self, rows: Sequence[Tensor | None], start: Sequence[Tensor], last: Sequence[Tensor]) -> None:
        self._sizes = [values.numel() for values in start]
        self._blocks = [-(-size // BLOCK) for size in self._sizes]
        self.device = start[0].device
        self._numbers = torch.arange(len(start)).repeat_interleave(torch.tensor(self._blocks)).to(self.device)
        step = at_once(self.device) // BLOCK
        total = len(self._numbers)
        self._parts = [(first, min(first + step, total), self._pieces(rows, first, first + step)) for first in range(0, total, step)]
        self._start, self._last = self._packed(start), self._packed(last)
        self.start, self.last = self._views(self._start), self._views(self._last)

    def look(self, tensors: Sequence[Tensor]) -> Tensor:
        """Compare, and copy for the next look: (columns of `changes`, tensors), on the device. tensors: (N,) all of each now."""
        table = self._start.new_zeros(FOLLOWED - CHANGED, len(self._sizes), dtype=torch.float64)
        for first, end, pieces in self._parts:
            now = self._gathered(tensors, pieces, end - first)
            sums = block_sums(changes(now, self._start[first:end], self._last[first:end]), end - first)
            table.index_add_(1, self._numbers[first:end], sums)
            self._last[first:end] = now
        return table

    def _pieces(self, rows: Sequence[Tensor | None], first: int, end: int) -> list[Piece]:
        """The parts of tensors in blocks ``first`` to ``end``."""
        pieces: list[Piece] = []
        for number, (stop, blocks) in enumerate(zip(accumulate(self._blocks), self._blocks, strict=True)):
            begin, low, high = stop - blocks, max(first, stop - blocks), min(end, stop)
            if low < high:
                chosen = rows[number]
                values = slice((low - begin) * BLOCK, min((high - begin) * BLOCK, self._sizes[number]))
                pieces.append((number, high - low, values, None if chosen is None else chosen[low - begin : high - begin]))
        return pieces

    def _gathered(self, tensors: Sequence[Tensor], pieces: Sequence[Piece], blocks: int) -> Tensor:
        packed = self._start.new_zeros(blocks, BLOCK)
        whole: tuple[list[Tensor], list[Tensor]] = [], []
        for (number, _, values, chosen), into in zip(pieces, torch.split(packed, [piece[1] for piece in pieces]), strict=True):
            tensor = tensors[number]
            if chosen is None:
                whole[0].append(into.view(-1)[: values.stop - values.start])
                whole[1].append(tensor[values])
            else:
                blocks_of = tensor if tensor.numel() % BLOCK == 0 else tensor[: tensor.numel() // BLOCK * BLOCK]
                torch.index_select(blocks_of.view(-1, BLOCK), 0, chosen, out=into)
        if whole[0]:
            torch._foreach_copy_(*whole)
        return packed

    def _packed(self, tensors: Sequence[Tensor]) -> Tensor:
        packed = tensors[0].new_zeros(len(self._numbers), BLOCK)
        torch._foreach_copy_(self._views(packed), list(tensors))
        return packed

    def _views(self, packed: Tensor) -> list[Tensor]:
        return [rows.view(-1)[:size] for rows, size in zip(torch.split(packed, self._blocks), self._sizes, strict=True)]
