"""Writes BASE+ADAPTER as a checkpoint, and tells what its dtype loses of the update."""

from analyzers.merge.report import MergeReport, Target
from analyzers.merge.run import merge

__all__ = ["MergeReport", "Target", "merge"]
