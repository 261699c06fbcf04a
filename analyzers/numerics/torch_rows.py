"""Counts exact rows on a device with torch, with the results of `row_kernels`.

torch is imported on first use. Tests run the same code on CPU tensors. The device finds the rows without a value that the narrower format
cannot hold, of which a model that was never rounded has next to none. Only of those are values read, few at first, and judged by the
compiled loop.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.row_kernels import informative_rows

_AT_ONCE = 1 << 22  # Values tested at once, which takes some 20 bytes for each.
_FIRST = 256  # Values of a row that are read at first. What they prove, the whole row proves.


def exact_rows(patterns: Any, row: int, need: int) -> tuple[int, int]:
    """Count rows of fp32 or fp16 patterns, (n,) of int32 or int16, as `exact_rows32` and `exact_rows16` do: exact in bf16, and in fp16."""
    import torch

    table = patterns.view(-1, row)
    wide = patterns.dtype == torch.int32
    ancestors = torch.cat([_ancestors(part) if wide else _ancestor16(part) for part in table.split(max(1, _AT_ONCE // row))]).cpu().numpy()
    mantissa, exponent, low = (23, 8, 16) if wide else (10, 5, 3)
    bf16 = _informative(table, np.flatnonzero(ancestors == 1), mantissa, exponent, need, 0, low)
    return bf16, _informative(table, np.flatnonzero(ancestors == 2), mantissa, exponent, need, 0xFFFF, 13)


def _ancestors(codes: Any) -> Any:
    """(rows,) of fp32 patterns: 1 for a row exact in bf16, else 2 for one exact in fp16, else 0."""
    import torch

    magnitude = codes & 0x7FFFFFFF
    finite = magnitude < 0x7F800000
    beyond_bf16 = ((codes & 0xFFFF) != 0).logical_and_(finite).any(1)
    steps = codes.view(torch.float32) * 2.0**24  # below 2^-14, fp16 holds the multiples of 2^-24
    uneven = torch.where(magnitude < 0x38800000, steps != steps.floor(), (magnitude >= 0x47800000) | ((magnitude & 0x1FFF) != 0))
    beyond_fp16 = uneven.logical_and_(finite).any(1)
    return torch.where(beyond_bf16, (~beyond_fp16).to(torch.uint8) * 2, 1).to(torch.uint8)


def _ancestor16(codes: Any) -> Any:
    """(rows,) of fp16 patterns: 1 for a row exact in bf16 but for subnormals, else 0."""
    import torch

    magnitude = codes & 0x7FFF
    return (~((magnitude >= 0x0400) & (magnitude < 0x7C00) & ((codes & 7) != 0)).any(1)).to(torch.uint8)


def _informative(table: Any, rows: NDArray[np.int64], *test: int) -> int:
    """Count the informative ones of some rows of (rows, n) patterns. test: see `row_kernels.informative_rows`."""
    import torch

    count = 0
    for width in dict.fromkeys((min(_FIRST, table.shape[1]), table.shape[1])):
        if len(rows):
            chosen = table[torch.from_numpy(rows).to(table.device), :width].cpu().numpy()
            told = informative_rows(chosen.view(f"u{chosen.itemsize}").reshape(-1), width, *test)
            count += int(np.count_nonzero(told))
            rows = rows[~told]
    return count
