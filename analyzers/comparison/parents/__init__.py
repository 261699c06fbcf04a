"""Determines which models the weights of a checkpoint come from, and in which proportions."""

from analyzers.comparison.parents.analyze import analyze
from analyzers.comparison.parents.report import ParentsReport, ParentsRequest, lost_tensors

__all__ = ["ParentsReport", "ParentsRequest", "analyze", "lost_tensors"]
