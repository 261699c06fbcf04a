"""Some tokens on their way back through a head, and what the methods do with them.

Axes: n tokens, d width, V vocabulary, k chosen tokens of the vocabulary, r columns of a table.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from analyzers.exit_feedback.heads.activation import wide

# Rows of a table that are gathered at once.
_GATHERED = 1 << 22
# Neighbours of which the largest is found first, when the largest of a row are looked for.
_BLOCK = 64


@dataclass(slots=True)
class Rows:
    """h: (n, d). gradient: of the loss with respect to y = h W^T + b, (n, V). Nothing of it may be written to.

    Where the head ``reads_logits`` there are, with both gradients in float32 at least: logits, the gradient with respect to the logits,
    (n, V); linear: h W^T, without the bias, (n, V); gold: the tokens asked for, (n,), -1 where that is not known, None where it never is.
    """

    h: Tensor
    gradient: Tensor
    logits: Tensor | None = None
    linear: Tensor | None = None
    gold: Tensor | None = None

    def chosen(self, k: int) -> tuple[Tensor, Tensor]:
        """Per token the k of the vocabulary with the largest |logit gradient|, each once, (n, k), and their part of ``gradient``.

        The gold token is always among them, first. Where it is not known it is taken for the largest, which for a cross-entropy it is:
        |p_gold - 1| is the sum of all others.
        """
        assert self.logits is not None
        known = None if self.gold is None else self.gold[:, None] >= 0
        if k == 1 and self.gold is not None and known is not None and bool(known.all()):
            index = self.gold[:, None]
        else:
            size = self.logits.abs()
            if self.gold is not None and known is not None:
                place = self.gold[:, None].clamp(min=0)
                size.scatter_(1, place, size.gather(1, place).masked_fill_(known, torch.inf))
            index = largest(size, k)
        return index, self.gradient.gather(1, index)

    def direction(self) -> Tensor:
        """h / |h|, zero for h = 0, float32 at least: (n, d). Scaled first, so that no square is lost or overflows."""
        states = self.h.to(wide(self.h.dtype))
        largest = states.abs().amax(-1, keepdim=True)
        scaled = states / torch.where(largest == 0, 1, largest)
        length = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True)
        return scaled / torch.where(largest == 0, 1, length)


Signal = Callable[[Rows], Tensor]
"""A method during one call: the signal (n, d), in any float type, of some rows."""


def largest(values: Tensor, k: int) -> Tensor:
    """Where the k largest of each row are, in descending order: (n, V) to (n, k).

    They are in the k blocks with the largest maxima, so that only those are sorted: on a CPU several times faster than ``topk`` of all.
    """
    blocks = values.shape[1] // _BLOCK
    if blocks <= 4 * k:
        return values.topk(k, -1).indices
    tail = torch.arange(blocks * _BLOCK, values.shape[1], device=values.device).expand(len(values), -1)
    chosen = values[:, : blocks * _BLOCK].view(len(values), blocks, _BLOCK).amax(-1).topk(k, -1).indices
    within = chosen[:, :, None] * _BLOCK + torch.arange(_BLOCK, device=values.device)
    index = torch.cat([within.flatten(1), tail], 1)
    return index.gather(1, values.gather(1, index).topk(k, -1).indices)


def weighted_rows(table: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    """sum_j weights_nj table[index_nj]: (V, r), (n, k), (n, k) to (n, r), in the type of the weights.

    Without the (n, k, r) numbers that it sums; where most of a table is asked for, as a product with all of it.
    """
    if 16 * index.shape[1] >= len(table):
        spread = weights.new_zeros(len(index), len(table)).scatter_(1, index, weights)
        return spread @ table.to(weights.dtype)
    total = weights.new_zeros(len(index), table.shape[1])
    step = max(1, _GATHERED // max(1, total.numel()))
    for first in range(0, index.shape[1], step):
        here = slice(first, first + step)
        total += (weights[:, None, here] @ table[index[:, here]].to(weights.dtype)).squeeze(1)
    return total


def pieces(logits: Tensor, at_most: int) -> list[slice]:
    """The rows of (n, V) a few at a time: a part of ``at_most``, so that what is computed beside them is small; not too few for speed."""
    rows, vocabulary = logits.shape
    step = max(1, at_most // 32, (1 << 18) // max(1, vocabulary))
    return [slice(first, min(first + step, rows)) for first in range(0, rows, step)]
