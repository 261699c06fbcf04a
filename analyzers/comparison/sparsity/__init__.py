"""Update sparsity: measures the share of the weights that a fine-tune changed at bf16 resolution, where, and by how much."""

from analyzers.comparison.sparsity.analyze import analyze
from analyzers.comparison.sparsity.report import SparsityReport, SparsityRequest

__all__ = ["SparsityReport", "SparsityRequest", "analyze"]
