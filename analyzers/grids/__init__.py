"""Finds scaled grids among stored values: which quantizer made them."""

from analyzers.grids.claims import grid_of
from analyzers.grids.counts import GridCounts, Grids, together
from analyzers.grids.search import GridSearch
from analyzers.grids.source import SourceOnGrid
from analyzers.grids.tensor_grid import TensorGrid, describe

__all__ = ["GridCounts", "GridSearch", "Grids", "SourceOnGrid", "TensorGrid", "describe", "grid_of", "together"]
