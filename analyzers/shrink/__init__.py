"""Stores a checkpoint in fewer bytes, without changing a value."""

from analyzers.shrink.plan import NothingToShrink, Planned, Target, make_plan
from analyzers.shrink.report import ShrinkReport, ShrunkTensor
from analyzers.shrink.run import shrink

__all__ = ["NothingToShrink", "Planned", "ShrinkReport", "ShrunkTensor", "Target", "make_plan", "shrink"]
