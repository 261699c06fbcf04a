"""Update sparsity: measures the share of the weights that a fine-tune changed at bf16 resolution, where, and by how much."""

from analyzers.update_sparsity.analyze import analyze
from analyzers.update_sparsity.report import SparsityReport, SparsityRequest

__all__ = ["SparsityReport", "SparsityRequest", "analyze"]
