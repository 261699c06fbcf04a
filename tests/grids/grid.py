"""Finds the grid of one matrix in memory."""

import torch

from analyzers.checkpoints import Tensor
from analyzers.grids.decide import on_grids
from analyzers.grids.search import GridSearch, together
from analyzers.grids.tensor_grid import TensorGrid
from tests.dtype.checkpoints import NAMES


def grid(values: torch.Tensor, part: int = 0, every: int = 0) -> TensorGrid | None:
    """Return the grid of a matrix of which ``part`` elements in every so many are read, each part alone; by default all of it at once."""
    codes = values.contiguous().view({2: torch.uint16, 4: torch.uint32}[values.element_size()]).numpy().ravel()
    tensor = Tensor("w.weight", NAMES[values.dtype], tuple(values.shape), 0, 0, codes.nbytes, "mlp", None, False)
    parts, read = [], 0
    for start in range(0, codes.size, every or part or codes.size):
        search, some = GridSearch(tensor), codes[start : start + (part or codes.size)]
        search.add(some, start)
        parts.append(search.found)
        read += some.size
    return on_grids(together(parts), read, tuple(values.shape)).grid
