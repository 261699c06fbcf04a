"""Finds scaled grids among stored values: which quantizer made them."""

from analyzers.grids.decide import grid_of
from analyzers.grids.search import Grids, GridSearch, together
from analyzers.grids.tensor_grid import TensorGrid, describe

__all__ = ["GridSearch", "Grids", "TensorGrid", "describe", "grid_of", "together"]
