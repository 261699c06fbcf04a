"""Determines which models the weights of a checkpoint come from, and in which proportions."""

from analyzers.parents.analyze import analyze
from analyzers.parents.report import ParentsReport, ParentsRequest

__all__ = ["ParentsReport", "ParentsRequest", "analyze"]
