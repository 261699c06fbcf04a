"""Check: is this upload what it claims to be, and what does it waste? Turns reports of analyzers into findings."""

from analyzers.check.report import CheckReport, Finding
from analyzers.check.run import check

__all__ = ["CheckReport", "Finding", "check"]
