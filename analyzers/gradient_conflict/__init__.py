"""Gradient conflict: do samples pull the same neuron in opposite directions, and does one of them dominate?

Loads without torch: forms and endpoints need the request alone.
"""

from analyzers.gradient_conflict.analyze import analyze
from analyzers.gradient_conflict.report import ConflictReport
from analyzers.gradient_conflict.request import TOPK_OPTIONS, ConflictRequest, TextPair

__all__ = ["TOPK_OPTIONS", "ConflictReport", "ConflictRequest", "TextPair", "analyze"]
