"""Says what checkpoints are to each other: composed of the reports of parents and of update sparsity."""

from analyzers.comparison.compare.analyze import analyze, descent
from analyzers.comparison.compare.report import CompareReport, CompareRequest

__all__ = ["CompareReport", "CompareRequest", "analyze", "descent"]
