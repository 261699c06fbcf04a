"""Exit feedback: how close does a cheap gradient at the LM head, made without backpropagation, come to the exact one?"""

from analyzers.exit_feedback.analyze import analyze
from analyzers.exit_feedback.report import NULL, TIMINGS, ExitProgress, ExitReport
from analyzers.exit_feedback.request import CEILINGS, METHODS, RANDOM, ExitRequest
from analyzers.exit_feedback.words import headline

__all__ = ["CEILINGS", "METHODS", "NULL", "RANDOM", "TIMINGS", "ExitProgress", "ExitReport", "ExitRequest", "analyze", "headline"]
