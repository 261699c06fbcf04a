"""Sums of the differences of many tensors on a GPU, packed together, since a launch for each takes longer than the arithmetic."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

FloatArray = NDArray[np.float64]

_WIDTH = 1024  # Elements that are summed in float32.
_LEAST = 2.0**-100  # Smaller sums of squares may consist of what float32 cannot hold: 2^-150 is lost of each.


def packed_sums(xs: Sequence[Tensor], refs: Sequence[Tensor], scale: float) -> Tensor:
    """(4 N,) float64 for the N rows of all x (R, n) and ref (R, n), with d = x - scale ref: sums of d, d^2 and ref d, and max |d|.

    All are on one device, and x has one dtype. d and sums of 1,024 elements are float32, sums of these float64: each sum is within 1e-5 of
    the sum of its absolute terms, unless float32 cannot hold the squares (see `held`).
    """
    x, ref = (torch.cat([_padded(tensor).reshape(-1) for tensor in side]).view(-1, _WIDTH) for side in (xs, refs))
    d = torch.sub(x, ref, alpha=scale)
    parts = [d.sum(1), torch.linalg.vector_norm(d, dim=1), ref.mul_(d).sum(1), torch.linalg.vector_norm(d, float("inf"), dim=1)]
    table = torch.stack(parts).double()
    table[1].square_()
    blocks = [-(-tensor.shape[1] // _WIDTH) for tensor in xs for _ in range(tensor.shape[0])]
    row = torch.repeat_interleave(torch.tensor(blocks).to(d.device, non_blocking=True), output_size=len(d))
    sums = table.new_zeros(3, len(blocks)).index_add_(1, row, table[:3])
    return torch.cat([sums.view(-1), table.new_zeros(len(blocks)).scatter_reduce_(0, row, table[3], "amax")])


def held(found: FloatArray, ref_ref: FloatArray) -> NDArray[np.bool_]:
    """(N,) whether float32 held the squares and products of rows. found: (N, 4) by `packed_sums`; ref_ref: (N,) sums of ref^2."""
    _, d_d, _, largest = found.T
    with np.errstate(over="ignore", invalid="ignore"):
        enough = (d_d >= _LEAST) & ((ref_ref == 0) | (ref_ref * d_d >= _LEAST**2))
    right: NDArray[np.bool_] = (largest == 0) | enough & np.isfinite(found).all(1)
    return right


def _padded(tensor: Tensor) -> Tensor:
    """With zeros to whole blocks."""
    short = -tensor.shape[1] % _WIDTH
    return pad(tensor, (0, short)) if short else tensor
