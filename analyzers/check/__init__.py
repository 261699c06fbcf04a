"""Check: is this upload what it claims to be, and what does it waste? Turns reports of other analyzers into findings."""

from analyzers.check.analyze import analyze
from analyzers.check.report import CheckReport, CheckRequest, Finding

__all__ = ["CheckReport", "CheckRequest", "Finding", "analyze"]
