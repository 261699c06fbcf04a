"""Gradient conflict: do samples pull the same neuron apart, and does one of them dominate?"""

from analyzers.gradient_conflict.analyze import analyze
from analyzers.gradient_conflict.report import ConflictReport
from analyzers.gradient_conflict.request import ConflictRequest, TextPair

__all__ = ["ConflictReport", "ConflictRequest", "TextPair", "analyze"]
