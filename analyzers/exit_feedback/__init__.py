"""Exit feedback: how close is a cheap gradient at the LM head, computed without backpropagation, to the exact one?

Loads without torch: forms read the names of signals here, and ``heads``, which train other models, need torch alone.
"""

from analyzers.exit_feedback.analyze import analyze
from analyzers.exit_feedback.report import ExitProgress, ExitReport
from analyzers.exit_feedback.request import ExitRequest

__all__ = ["ExitProgress", "ExitReport", "ExitRequest", "analyze"]
