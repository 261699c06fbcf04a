"""Finds scaled grids among stored values: which quantizer made them."""

from analyzers.grids.decide import OnGrids, on_grids
from analyzers.grids.search import Grids, GridSearch, together
from analyzers.grids.tensor_grid import TensorGrid, describe

__all__ = ["GridSearch", "Grids", "OnGrids", "TensorGrid", "describe", "on_grids", "together"]
