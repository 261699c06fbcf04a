"""Update sparsity: what share of the weights a fine-tune changed that bf16 can see, where, and by how much."""

from analyzers.update_sparsity.analyze import analyze
from analyzers.update_sparsity.report import SparsityReport, SparsityRequest

__all__ = ["SparsityReport", "SparsityRequest", "analyze"]
