"""Finds the grid of one matrix in memory."""

import numpy as np
import torch

from analyzers.checkpoints import Tensor
from analyzers.grids.decide import grid_of
from analyzers.grids.search import GridSearch, together
from analyzers.grids.tensor_grid import TensorGrid
from analyzers.numerics.few_significands import RUN_COUNTS, runs_of_few_significands
from tests.dtype_detection.checkpoints import NAMES

FIELDS = {torch.float32: (23, 8), torch.float16: (10, 5), torch.bfloat16: (7, 8)}


def grid(values: torch.Tensor, part: int = 0, every: int = 0) -> TensorGrid | None:
    """Return the grid of a matrix of which ``part`` elements in every so many are read, each part alone; by default all of it at once."""
    codes = values.contiguous().view({2: torch.uint16, 4: torch.uint32}[values.element_size()]).numpy().ravel()
    tensor = Tensor("w.weight", NAMES[values.dtype], tuple(values.shape), 0, 0, codes.nbytes, "mlp", None, False)
    parts, read, runs = [], 0, np.zeros(RUN_COUNTS, np.int64)
    for start in range(0, codes.size, every or part or codes.size):
        search, some = GridSearch(tensor), codes[start : start + (part or codes.size)]
        search.add(some, start)
        parts.append(search.found)
        read += some.size
        runs_of_few_significands(some, min(some.size, values.shape[-1]), 0, *FIELDS[values.dtype], 1, runs)
    return grid_of(together(parts), read, tuple(values.shape), runs)
