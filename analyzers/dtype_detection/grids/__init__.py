"""Finds scaled grids among stored values: which quantizer made them."""

from analyzers.dtype_detection.grids.claims import grid_of
from analyzers.dtype_detection.grids.counts import GridCounts, Grids, together
from analyzers.dtype_detection.grids.search import GridSearch
from analyzers.dtype_detection.grids.source import SourceOnGrid
from analyzers.dtype_detection.grids.tensor_grid import TensorGrid, describe

__all__ = ["GridCounts", "GridSearch", "Grids", "SourceOnGrid", "TensorGrid", "describe", "grid_of", "together"]
