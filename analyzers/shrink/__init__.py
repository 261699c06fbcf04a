"""Shrink: store a checkpoint in fewer bytes, without changing a value."""

from analyzers.shrink.plan import Planned, make_plan
from analyzers.shrink.report import ShrinkReport, ShrunkTensor
from analyzers.shrink.run import shrink

__all__ = ["Planned", "ShrinkReport", "ShrunkTensor", "make_plan", "shrink"]
