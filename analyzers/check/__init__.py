"""Check: finds out whether an upload is what it claims to be, and what it wastes. Turns reports of other analyzers into findings."""

from analyzers.check.analyze import analyze
from analyzers.check.report import CheckReport, CheckRequest, Finding

__all__ = ["CheckReport", "CheckRequest", "Finding", "analyze"]
